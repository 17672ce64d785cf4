"""`bench seeds`: statistical drafts on a character-level model, beside what was published."""

import json
import sys
from typing import TYPE_CHECKING

from akunu_py.backend import find_backend
from akunu_py.cli.progress import MeasuringBar
from akunu_py.cli.seeds_settings import SeedsSettings

if TYPE_CHECKING:
    from akunu_py.bench.seeds.cases import Size
    from akunu_py.bench.seeds.char_model import CharModel
    from akunu_py.bench.seeds.char_text import CharText
    from akunu_py.bench.seeds.report import Target


def run(settings: SeedsSettings) -> int:
    """Trains what is not trained yet, measures and prints; progress goes to standard error.

    Raises:
        AkunuError: if the text is not to be had, or it cannot be measured or drawn.
    """
    if settings.plot is not None:
        from akunu_py.bench.plots import check_can_plot  # noqa: PLC0415  (before what takes long)

        check_can_plot(settings.plot)
    backend = find_backend()
    from akunu_py.bench.machine import describe_machine, machine_line  # noqa: PLC0415
    from akunu_py.bench.seeds.char_text import read_char_text  # noqa: PLC0415
    from akunu_py.bench.seeds.report import SeedsReport  # noqa: PLC0415

    text = read_char_text(settings.text)
    models = [_find_model(text, steps) for steps in settings.steps]
    targets = [_measure(model, text, settings.size) for model in models]
    report = SeedsReport(describe_machine(backend), text, settings.size, targets)
    if settings.plot is not None:
        from akunu_py.bench.seeds.plot import draw_seeds  # noqa: PLC0415

        draw_seeds(report, settings.plot)
    if settings.as_json:
        print(json.dumps(report.as_json()))
        return 0
    print(f"{machine_line(report.machine)}\n\n{report.markdown()}")
    if settings.plot is not None:
        print(f"\nDrawn into {settings.plot}.")
    return 0


def _find_model(text: "CharText", steps: int) -> "CharModel":
    from akunu_py.bench.seeds.char_model import find_char_model  # noqa: PLC0415
    from akunu_py.bench.seeds.char_recipe import Recipe  # noqa: PLC0415

    with MeasuringBar(sys.stderr, f"training for {steps:,} steps", counts=True) as bar:
        return find_char_model(text, Recipe(steps=steps), bar)


def _measure(model: "CharModel", text: "CharText", size: "Size") -> "Target":
    from akunu_py.bench.seeds.report import SeedsRow, Target  # noqa: PLC0415
    from akunu_py.bench.seeds.runs import measure_seeds  # noqa: PLC0415
    from akunu_py.engine import load  # noqa: PLC0415

    title = f"measuring the target of {model.steps:,} steps"
    with MeasuringBar(sys.stderr, title, counts=True) as bar:
        outcomes = measure_seeds(load(str(model.folder)), text, size, bar)
    return Target(model, [SeedsRow.of(outcome) for outcome in outcomes])
