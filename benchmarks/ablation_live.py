"""What stages of the planner bring in `bench speedup`: live rounds, with time that a replay lacks.

    python -m benchmarks.ablation_live [--prompts 6] [--variants "no least saving" ...]

Each variant is a contestant with an engine of its own on the same weights and cost curve; its patch
is in force only while it answers. A figure is its speed over the shipped planner's, answer by
answer in the same turns.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import akunu_py
from akunu_py.bench.contestants import Akunu, Contestant, MlxLm, Task, TimedCompletion
from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.speedup import contest, make_tasks
from akunu_py.bench.workloads import make_workloads
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.engine import Engine
from akunu_py.planning import acceptance, live_costs, policies
from benchmarks.records import markdown_table, progress_line, record

NEVER: Final = 10**9

Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Patched(Akunu):
    """The shipped engine with a patch in force while it answers."""

    engine: Engine | None = None
    name: str = ""
    patches: tuple[Patch, ...] = ()

    def __str__(self) -> str:
        return self.name

    def complete(self, engine: Engine, task: Task) -> TimedCompletion | None:
        with ExitStack() as stack:
            for place, name, value in self.patches:
                stack.enter_context(patch.object(place, name, value))
            return super().complete(self.engine or engine, task)


def variants() -> dict[str, tuple[Patch, ...]]:
    """The stages of the planner, each off."""
    return {
        "as shipped": (),
        "no least saving": ((policies, "MIN_SAVING", 0.0),),
        "every step pipelined": ((policies, "MIN_SAVING", NEVER),),
        "no step pipelined": ((policies, "MIN_SAVING", -NEVER),),
        "no back-off of proposals": ((policies, "PROPOSE_BACKOFF", (NEVER,)),),
        "no probes": ((policies, "FIRST_PROBE", NEVER), (policies, "LAST_PROBE", NEVER)),
        "declined drafts not followed": ((acceptance.DeclinedDraft, "decline", lambda *_: None),),
        "no live costs": ((live_costs.LiveCosts, "_learn", lambda *_: None),),
    }


def main() -> None:
    """Reads the options, lets all variants answer in turns, records the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=6, help="requests of each workload")
    parser.add_argument("--variants", nargs="+", choices=list(variants())[1:], metavar="NAME",
                        help="of the stages; all by default")  # fmt: skip
    parser.add_argument("--name", default="ablation_live", help="of the files in results/")
    options = parser.parse_args()
    compared = {
        name: patches
        for name, patches in variants().items()
        if not patches or options.variants is None or name in options.variants
    }

    first = akunu_py.load()
    curve = measure_cost_curve(first.model, budget_s=10.0)
    contestants: list[Contestant] = [
        MlxLm(),
        Akunu("none"),
        *(
            Patched("auto", None, Engine(first.model, first.backend, calibrate=lambda *_: curve),
                    name, patches)
            for name, patches in compared.items()
        ),
    ]  # fmt: skip
    sets = encode_samples(first.tokenizer, make_workloads(options.prompts))
    tasks = make_tasks(sets, 192, ("own", "forced"))
    rows, complete = contest(
        first, tasks, contestants, rounds=1, curve=curve, progress=progress_line("answers")
    )
    found = {(row.kind, row.answers, row.contestant): row for row in rows}
    places = list(dict.fromkeys((row.kind, row.answers) for row in rows))
    table: dict[str, dict[str, float]] = {}
    lines = []
    for name in compared:
        cells = {}
        for kind, answers in places:
            row, shipped = found[kind, answers, name], found[kind, answers, "as shipped"]
            cells[f"{kind}, {answers}"] = (
                row.over_plain.median if name == "as shipped" else row.speed_of(shipped).median
            )
        table[name] = cells
        lines.append((name, *(f"{cell:.2f}" for cell in cells.values())))
    body = (
        f"{machine_line(describe_machine(first.backend))}. Model ember; {options.prompts} requests "
        "of each workload, all variants in turns. The first row is the shipped planner's speed "
        "over no drafts; the others are medians of a variant's speed over the shipped one's, "
        "answer by answer."
    )
    heads = ("variant", *(", ".join(place) for place in places))
    title = "What each stage of the planner brings in live rounds"
    record(options.name, title, f"{body}\n\n{markdown_table(heads, lines)}",
           {"complete": complete, "speeds": table})  # fmt: skip


if __name__ == "__main__":
    main()
