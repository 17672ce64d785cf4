"""`bench cost`, `bench speedup` and `bench replay`: measurements as tables and JSON.

Results go to standard output, progress to standard error.
"""

import json
import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markdown import Markdown

from akunu_py.bench import ANSWERS
from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import describe_machine, describe_model
from akunu_py.bench.replay import Policy, ReplayCase, ReplayReport, replay_policies
from akunu_py.bench.workloads import MAX_REQUESTS, encode_samples, hold_out, read_samples
from akunu_py.calibration.cost_store import find_curves
from akunu_py.cli.loading import find_row_class_with_bar, load_engine, measure_costs_with_bar
from akunu_py.cli.render import ProgressBar
from akunu_py.cli.settings import (
    BENCH_DRAFTERS,
    EVERY,
    CostSettings,
    ReplaySettings,
    SpeedupSettings,
)
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.memory.projects import project_folder

if TYPE_CHECKING:
    from akunu_py.bench.contestants import Contestant
    from akunu_py.bench.speedup import SpeedupReport
    from akunu_py.text.tokenizer import Tokenizer

_MIN_COLUMNS: Final = 160
"""Tables are at least this wide; a narrower terminal wraps or scrolls them."""


def run(settings: CostSettings | SpeedupSettings | ReplaySettings) -> int:
    """Measures, then prints the result."""
    report = measure(settings)
    if settings.as_json:
        print(json.dumps(report.as_json()))
        return 0
    console = Console(highlight=False)
    console.width = max(console.width, _MIN_COLUMNS)
    with console.capture() as capture:
        console.print(Markdown("\n\n".join([f"{report.heading}.", *report.markdown()])))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
    return 0


def measure(
    settings: CostSettings | SpeedupSettings | ReplaySettings,
) -> "CostReport | SpeedupReport | ReplayReport":
    """Measures or replays."""
    match settings:
        case CostSettings():
            return _measure_cost(settings)
        case SpeedupSettings():
            return _measure_speedup(settings)
        case ReplaySettings():
            return _replay(settings)


def _measure_cost(settings: CostSettings) -> CostReport:
    engine = load_engine(settings.model)
    curve = find_row_class_with_bar(engine, measure_costs_with_bar(engine, settings.seconds))
    return CostReport(describe_machine(engine.backend), describe_model(engine), curve)


def _measure_speedup(settings: SpeedupSettings) -> "SpeedupReport":
    from akunu_py.bench.workloads import make_workloads  # noqa: PLC0415

    samples = make_workloads(settings.prompts, settings.workloads)
    for path in settings.data:
        samples += islice(read_samples(path), settings.prompts)
    engine = load_engine(settings.model)
    from akunu_py.bench.contestants import Akunu, MlxLm  # noqa: PLC0415  (these need MLX)
    from akunu_py.bench.speedup import SpeedupReport, contest, make_tasks  # noqa: PLC0415

    sets = encode_samples(
        engine.tokenizer, samples, room=engine.context_limit - settings.max_tokens
    )
    if not sets:
        raise InvalidRequestError("No request fits the model's context; lower --max-tokens.")
    answers = ANSWERS if settings.answers == "both" else (settings.answers,)
    tasks = make_tasks(sets, settings.max_tokens, answers)
    contestants: list[Contestant] = [
        MlxLm(),
        Akunu("none"),
        *(Akunu(*policy) for policy in _policies(settings)),
    ]
    curve = measure_costs_with_bar(engine, settings.seconds)
    with ProgressBar(sys.stderr, "answering", counts=True) as bar:
        rows, complete = contest(
            engine, tasks, contestants, rounds=settings.rounds, curve=curve, progress=bar
        )
    return SpeedupReport(
        describe_machine(engine.backend), describe_model(engine), curve,
        settings.max_tokens, settings.rounds, rows, complete,
    )  # fmt: skip


def _replay(settings: ReplaySettings) -> ReplayReport:
    curves = find_curves(settings.costs, settings.model)
    sets, memories, most = _read_sets(settings), {}, settings.max_requests or MAX_REQUESTS
    policies = [Policy(*policy) for policy in _policies(settings)]
    with TemporaryDirectory() as folder:
        for path in settings.memory:
            project = project_folder(path)
            held_out = hold_out(project, _tokenizer(settings), Path(folder), most=most)
            sets[str(path)], memories[str(path)] = held_out.cases, held_out.memory
        with ProgressBar(sys.stderr, "replaying", counts=True) as bar:
            keeps = settings.keeps
            replayed = replay_policies(
                sets, policies, curves, keeps=keeps, progress=bar, memories=memories
            )
            rows = list(replayed)
    return ReplayReport(sets, curves, rows, settings.model)


def _policies(settings: SpeedupSettings | ReplaySettings) -> list[tuple[str, int | None]]:
    drafters = settings.drafters
    if EVERY in drafters:
        drafters = tuple(name for name in BENCH_DRAFTERS if name != "none")
    return [(name, most) for name in drafters for most in settings.num_draft_tokens]


def _read_sets(settings: ReplaySettings) -> dict[str, list[ReplayCase]]:
    samples = [
        sample
        for file in settings.files
        for sample in islice(read_samples(file), settings.max_requests)
    ]
    sets = encode_samples(_tokenizer(settings), samples) if samples else {}
    if settings.files and not sets:
        names = ", ".join(str(file) for file in settings.files)
        raise InvalidRequestError(f"There is no request with an answer in {names}.")
    return sets


def _tokenizer(settings: ReplaySettings) -> "Tokenizer":
    find_backend()  # fails with a clear sentence if there is no MLX
    from akunu_py.model.loading import load_tokenizer  # noqa: PLC0415

    return load_tokenizer(settings.model)
