"""`bench speedup`: how much faster than mlx-lm, on which text, and as predicted or not."""

import json
import sys
from itertools import islice
from typing import TYPE_CHECKING

from akunu_py.cli.bench import describe_model, measure_costs, print_tables
from akunu_py.cli.bench_settings import SpeedupSettings
from akunu_py.cli.loading import load_engine
from akunu_py.cli.progress import MeasuringBar
from akunu_py.errors import InvalidRequestError

if TYPE_CHECKING:
    from akunu_py.bench.contestants import Contestant
    from akunu_py.bench.replay import ReplayCase
    from akunu_py.bench.samples import Sample
    from akunu_py.engine import Engine


def run(settings: SpeedupSettings) -> int:
    """Prints what was measured; progress goes to standard error.

    Raises:
        AkunuError: if the model does not load, cannot draft, or a file holds no samples.
    """
    if settings.plot is not None:
        from akunu_py.bench.plots import check_can_plot  # noqa: PLC0415  (before what takes long)

        check_can_plot(settings.plot)
    samples = _read_samples(settings)
    engine = load_engine(settings.model)
    from akunu_py.bench.measurement import describe_machine, machine_line  # noqa: PLC0415
    from akunu_py.bench.speedup import contest, make_tasks  # noqa: PLC0415
    from akunu_py.bench.speedup_report import SpeedupReport  # noqa: PLC0415

    tasks = make_tasks(_encode(samples, engine, settings), settings.max_tokens, settings.answers)
    curve = measure_costs(engine, settings.seconds)
    with MeasuringBar(sys.stderr, "answering", counts=True) as bar:
        rows, complete = contest(
            engine, tasks, _contestants(settings),
            rounds=settings.rounds, curve=curve, progress=bar,
        )  # fmt: skip
    report = SpeedupReport(
        describe_machine(engine.backend), describe_model(engine), curve,
        settings.max_tokens, settings.rounds, rows, complete,
    )  # fmt: skip
    if settings.plot is not None:
        from akunu_py.bench.plots import draw_speedup  # noqa: PLC0415

        draw_speedup(report, settings.plot)
    if settings.as_json:
        print(json.dumps(report.as_json()))
        return 0
    model = report.model
    print(f"{model['name']}, {model['layout']} weights; {machine_line(report.machine)}\n")
    print_tables(report.tables())
    if settings.plot is not None:
        print(f"Drawn into {settings.plot}.")
    return 0


def _read_samples(settings: SpeedupSettings) -> "list[Sample]":
    """The built-in workloads that were asked for, and the first requests of each file."""
    from akunu_py.bench.samples import read_samples  # noqa: PLC0415
    from akunu_py.bench.workloads import make_workloads  # noqa: PLC0415

    made = [one for one in make_workloads(settings.prompts) if one.kind in settings.workloads]
    for path in settings.data:
        made += islice(read_samples(path), settings.prompts)
    return made


def _encode(
    samples: "list[Sample]", engine: "Engine", settings: SpeedupSettings
) -> "dict[str, list[ReplayCase]]":
    """Requests as this model sees them; those that are too long for it are left out.

    Raises:
        InvalidRequestError: if none is left.
    """
    from akunu_py.bench.samples import encode_samples  # noqa: PLC0415

    room = engine.context_limit - settings.max_tokens
    sets = {
        kind: fitting
        for kind, cases in encode_samples(engine.tokenizer, samples).items()
        if (fitting := [case for case in cases if 1 < len(case.prompt) <= room])
    }
    if not sets:
        raise InvalidRequestError("No request fits the model's context; lower --max-tokens.")
    return sets


def _contestants(settings: SpeedupSettings) -> "list[Contestant]":
    """mlx-lm first, plain decoding second, then every drafter at every length."""
    from akunu_py.bench.contestants import Akunu, MlxLm  # noqa: PLC0415

    drafting = [Akunu(name, drafts) for name in settings.drafters for drafts in settings.drafts]
    return [MlxLm(), Akunu("none"), *drafting]
