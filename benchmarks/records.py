"""What the scripts share: timing in turns, progress, and records in `results/`.

    python -m benchmarks.records cost
    python -m benchmarks.records speedup --prompts 6 --rounds 2

A record is a Markdown file with the command that prints it again. This command records what
`bench cost` or `bench speedup` finds, with their options; `--name NAME` calls it otherwise.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, Final

from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import Spread, markdown_table, write_report
from akunu_py.bench.speedup import SHOWN_NAMES, SpeedupReport
from akunu_py.cli.bench import measure
from akunu_py.cli.parser import parse
from akunu_py.errors import InvalidRequestError

__all__ = [
    "RESULTS",
    "command",
    "markdown_table",
    "options_of",
    "paired_ratios",
    "progress_line",
    "record",
    "time_in_turns",
]

RESULTS: Final = Path(__file__).parent / "results"


def record(name: str, title: str, body: str, result: Mapping[str, Any] | None = None) -> None:
    """Writes `results/NAME.md`, and prints it, and the whole result in JSON as the last line."""
    RESULTS.mkdir(exist_ok=True)
    print(write_report(RESULTS / name, title, [f"By `{command()}`.", body]))
    if result is not None:
        print(json.dumps(result))


def command() -> str:
    """The command that runs; of absolute paths, only the name is told."""
    main = sys.modules["__main__"].__spec__
    module = main.name.removesuffix(".__main__") if main else Path(sys.argv[0]).name
    words = [Path(w).name.upper() if Path(w).is_absolute() else w for w in sys.argv[1:]]
    return shlex.join(["python", "-m", module, *words])


def options_of(
    about: str, *, name: str | None = None, quick: str = "", data: bool = False
) -> argparse.ArgumentParser:
    """The options of a script with this docstring: `--name` of its record, `--quick` if there is a
    help for it, and `--data` if it needs the data sets."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    if data:
        parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    if name is not None:
        parser.add_argument("--name", default=name, help="of the files in results/")
    return parser


def progress_line(what: str) -> Callable[[int, int], None]:
    """A callback that writes `done/total what` to standard error, in one line."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done}/{total} {what}", end=end, file=sys.stderr, flush=True)

    return show


def time_in_turns(
    contestants: Mapping[str, Callable[[], object]], *, repeats: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Seconds that each contestant took, run in turns whose order changes every time.

    Args:
        contestants: what to run, by name.
        repeats: how often each is timed.
        warmups: how often each runs before that, untimed.

    Returns:
        A list for each contestant; entries of the same index were measured in the same turn.
    """
    if repeats < 1:
        raise InvalidRequestError(f"A measurement needs 1 repeat or more, not {repeats}.")
    for _ in range(warmups):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = Random(0).shuffle
    for _ in range(repeats):
        order = list(contestants)
        shuffle(order)
        for name in order:
            begun = perf_counter()
            contestants[name]()
            seconds[name].append(perf_counter() - begun)
    return seconds


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """How many times as fast as the baseline, from measurements of the same turns."""
    return Spread.of([base / own for own, base in zip(seconds, baseline, strict=True)])


def main() -> None:
    words = sys.argv[1:]
    if words[:1] not in (["cost"], ["speedup"]):
        sys.exit("Name what to record: cost or speedup, and options of `bench`.")
    name = words[0]
    if "--name" in words:
        place = words.index("--name")
        name = words[place + 1]
        del words[place : place + 2]
    report = measure(parse(["bench", *words]).settings)
    assert isinstance(report, CostReport | SpeedupReport)
    title = "What a forward pass costs" if words[0] == "cost" else "Speedup over mlx-lm"
    shown = (SHOWN_NAMES,) if isinstance(report, SpeedupReport) else ()
    parts = report.markdown(*shown)
    record(name, title, "\n\n".join([f"{report.heading}.", *parts]))


if __name__ == "__main__":
    main()
