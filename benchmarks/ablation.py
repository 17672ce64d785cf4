"""What each stage and each tuned constant of `auto` and the planner brings, by replay without it.

    python -m benchmarks.ablation --data DATA [--only WORDS ...] [--costs ...] [--every N] [--quick]

Each variant patches the shipped code in one place while it runs, and replays the odd-numbered
requests of every set under published cost curves. A figure is the change of the predicted speedup
in percent: below 0, the stage, or the value that the code has, is worth that much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final
from unittest.mock import patch

from akunu_py.bench.replay import ReplayCase, replay
from akunu_py.calibration.cost_store import NamedCurve, find_curves
from akunu_py.drafting import acceptance, alignment, auto, make_drafter, occurrences
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.alignment import Alignment, Rewrites
from akunu_py.drafting.occurrences import Consensus, Occurrences
from akunu_py.model.loading import load_tokenizer
from akunu_py.planning import costs as shared_costs
from akunu_py.planning import trials
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.costs import LiveCosts
from akunu_py.planning.planner import DraftPlanner
from benchmarks.records import markdown_table, options_of, progress_line, record
from benchmarks.replay_data import COSTS, DATA_SETS, read_sets

NEVER: Final = 10**9
EVERY: Final = {"fill-ins": 4}
"""Of a set with so many requests, variants replay every fourth one."""

Cell = tuple[str, str]
Patch = tuple[Any, str, Any]


@dataclass(frozen=True)
class Costs:
    """What rounds cost, and what the planner believes, relative to the published curves.

    A relative curve has no overlap: a pipelined step costs as much as a round over one token. And
    costs that are right give live costs nothing to do. So both are changed here.

    Attributes:
        name: in the table.
        step: the true cost of a pipelined step.
        believed: the factor on the planner's costs of rounds over `first` tokens and more.
        first: see there.
    """

    name: str = ""
    step: float = 1.0
    believed: float = 1.0
    first: int = 1

    def true(self, curve: CostCurve) -> CostCurve:
        return CostCurve(
            tuple(replace(level, decode_s=level.decode_s * self.step) for level in curve.levels)
        )

    def believed_curve(self, curve: CostCurve) -> CostCurve:
        return CostCurve(tuple(map(self._told, self.true(curve).levels)))

    def _told(self, level: CostLevel) -> CostLevel:
        rounds = (
            (size, cost * (self.believed if size >= self.first else 1.0))
            for size, cost in level.verify_s
        )
        return replace(level, verify_s=tuple(rounds))


PUBLISHED: Final = Costs()
OVERLAP: Final = Costs("pipelined steps 12 % cheaper", step=0.88)
TOO_LOW: Final = Costs("5 tokens and more believed 1/1.5 as dear", believed=1 / 1.5, first=5)
TOO_HIGH: Final = Costs("2 tokens and more believed 3 times as dear", believed=3.0, first=2)


@dataclass(frozen=True)
class Variant:
    """One change of the shipped code.

    Attributes:
        stage: the part of the code that it changes.
        change: what is off or different.
        patches: what to replace: an object, the name of its attribute, the new value.
        costs: what rounds cost.
        drafter: which drafter to replay.
    """

    stage: str
    change: str
    patches: tuple[Patch, ...]
    costs: Costs = PUBLISHED
    drafter: str = "auto"


def off(stage: str, change: str, *patches: Patch) -> Variant:
    """A variant of `auto` under the published costs."""
    return Variant(stage, change, patches)


def moved(stage: str, module: Any, name: str, *values: Any) -> list[Variant]:
    """One variant for each other value of a constant."""
    now = getattr(module, name)
    return [
        off(stage, f"{name.strip('_')} {now} -> {value}", (module, name, value)) for value in values
    ]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def always(answer: float) -> Callable[..., float]:
    return lambda *_, **__: answer


_best = Occurrences.best
_bucket = acceptance.bucket
_copy = acceptance.copy_evidence
_match = acceptance.match_evidence
_resumed = acceptance.resumed_evidence


def planner_variants() -> Iterator[Variant]:
    no_probes = ((trials, "PROBE_AFTER", NEVER), (trials, "HOPE", 0.0))
    for costs in (PUBLISHED, OVERLAP):
        for gain in (1.0, -1.0):
            change = "every step pipelined" if gain > 0 else "no step pipelined"
            fixed = ((DraftPlanner, "pipeline_gain", always(gain)),)
            yield Variant("pipelining", change, fixed, costs)
    yield from moved("pipelining", trials, "MIN_SAVING", 0.0)
    for costs in (PUBLISHED, TOO_LOW, TOO_HIGH):
        yield Variant("probes", "none", no_probes, costs)
    for costs in (TOO_LOW, TOO_HIGH):
        yield Variant("live costs", "off", ((LiveCosts, "observe", _nothing),), costs)
        yield Variant("live costs", "no drift", ((shared_costs, "_SCALE_DRIFT", 0.0),), costs)
        yield Variant("live costs", "no surprise", ((shared_costs, "_CLIP", 1e9),), costs)
    for change, patches in {
        "nothing is learnt": ((AcceptanceRates, "learn", _nothing),),
        "one rate for all lengths": ((acceptance, "_kind", lambda draft: draft.source),),
        "declined drafts not followed": ((trials.DeclinedDraft, "decline", _nothing),),
    }.items():
        yield Variant("rates of `ngram`", change, patches, drafter="ngram")


def drafter_variants() -> Iterator[Variant]:
    yield off("learnt rates", "nothing is learnt", (AcceptanceRates, "learn", _nothing))
    yield off("learnt rates", "one for all positions", (auto, "bucket", lambda e, _: _bucket(e, 0)))
    yield from moved("learnt rates", acceptance, "PRIOR_WEIGHT", 16.0)
    yield from moved("learnt rates", acceptance, "MEMORY", 256.0)
    yield off("bigram affinity", "off", (auto, "AFFINITY_ODDS", (1.0,) * 12))
    yield from moved("draft's end", auto, "MIN_REACH_PROB", 0.02, 0.2)
    yield off("copy", "off: matches alone",
              (auto, "SOLID_RUN", NEVER), (Alignment, "resumption", _nothing))  # fmt: skip
    yield from moved("copy", auto, "STEADY_RUN", NEVER)
    for run in (4, 16):
        change = f"SOLID_RUN 8 -> {run}"
        yield off("copy", change, (auto, "SOLID_RUN", run), (alignment, "SOLID_RUN", run))
    yield off("copy", "one kind of evidence for all runs",
              (auto, "copy_evidence", lambda _: _copy(9)))  # fmt: skip
    yield off("resumed copy", "off", (Alignment, "resumption", _nothing))
    yield from moved("resumed copy", alignment, "RESUMED_RUN", 6)
    yield from moved("resumed copy", alignment, "RESUMED_BONUS", 0)
    yield from moved("resumed copy", alignment, "SEARCHED", 16)
    yield from moved("resumed copy", alignment, "MAX_PLACES", 1)
    yield off("resumed copy", "distance is no evidence",
              (auto, "resumed_evidence", lambda length, _: _resumed(length, 1)),
              )  # fmt: skip
    yield off("rewrites", "off", (Rewrites, "learn", _nothing))
    yield from moved("rewrites", alignment, "MAX_OLD_LENGTH", 2)
    yield from moved("rewrites", alignment, "MAX_NEW_LENGTH", 3)
    yield off("match", "the start of an answer is no evidence",
              (auto, "match_evidence", lambda length, **_: _match(length, whole_answer=False)),
              )  # fmt: skip
    yield off("match", "consensus is no evidence",
              (auto, "match_evidence",
               lambda length, whole_answer: (_match(length, whole_answer)[Consensus.ONLY],) * 4),
              )  # fmt: skip
    yield off("match", "length is no evidence",
              (auto, "match_evidence", lambda _, whole_answer: _match(3, whole_answer)),
              )  # fmt: skip
    yield off("match", "always the latest", (Occurrences, "best", lambda own, **_: _best(own)))
    yield from moved("match", occurrences, "MAX_COMPARED", 6)
    yield from moved("match", occurrences, "VISITED", 1, 3)


def speedups(
    variant: Variant, sets: dict[str, list[ReplayCase]], curves: Sequence[NamedCurve]
) -> dict[Cell, float]:
    found: dict[Cell, float] = {}
    with ExitStack() as stack:
        for target, name, value in variant.patches:
            stack.enter_context(patch.object(target, name, value))
        for kind, cases in sets.items():
            for curve in curves:
                kept = make_drafter(variant.drafter)
                planner = DraftPlanner(variant.costs.believed_curve(curve.curve))
                true = variant.costs.true(curve.curve)
                result = replay(lambda drafter=kept: drafter, cases, planner, curve=true)  # type: ignore[misc]
                found[kind, curve.name] = result.predicted_speedup(true)
    return found


@dataclass(frozen=True)
class Outcome:
    """For each cell, by how many percent a variant changes the predicted speedup."""

    variant: Variant
    changes: dict[Cell, float]

    def row(self) -> list[str]:
        worst = min(self.changes, key=lambda cell: self.changes[cell])
        change = ", ".join(filter(None, (self.variant.change, self.variant.costs.name)))
        means = (f"{mean:+.2f}" for mean in means_by_set(self.changes).values())
        return [self.variant.stage, change, *means,
                f"{self.changes[worst]:+.2f} ({', '.join(worst)})"]  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            "stage": self.variant.stage,
            "change": self.variant.change,
            "drafter": self.variant.drafter,
            "costs": self.variant.costs.name,
            "change_percent": by_name(self.changes, 2),
        }


def means_by_set(cells: dict[Cell, float]) -> dict[str, float]:
    """The mean over the cost curves."""
    kinds = dict.fromkeys(kind for kind, _ in cells)
    return {name: fmean(x for (kind, _), x in cells.items() if kind == name) for name in kinds}


def by_name(cells: dict[Cell, float], digits: int) -> dict[str, float]:
    return {", ".join(cell): round(value, digits) for cell, value in cells.items()}


def shipped_table(now: dict[Cell, float]) -> str:
    """The predicted speedup of the shipped code, cell by cell."""
    curves = list(dict.fromkeys(curve for _, curve in now))
    kinds = dict.fromkeys(kind for kind, _ in now)
    rows = [(kind, *(f"{now[kind, curve]:.2f}" for curve in curves)) for kind in kinds]
    return markdown_table(("set", *curves), rows)


def main() -> None:
    parser = options_of(
        __doc__, name="ablation", quick="two curves, every eighth request", data=True
    )
    parser.add_argument("--only", nargs="+", default=[""], help="words of the stages to replay")
    parser.add_argument("--part", default="odd", help="which requests of a set")
    parser.add_argument("--costs", nargs="+", default=COSTS)
    parser.add_argument("--every", type=int, default=1, help="variants replay every Nth request")
    options = parser.parse_args()
    if options.quick:
        options.costs, options.every = ("m4-pro", "cpu-25m"), 8

    sets = read_sets(options.data, list(DATA_SETS), options.part, load_tokenizer("ember"))
    curves = find_curves(options.costs, "ember")
    variants = [
        variant
        for variant in (*planner_variants(), *drafter_variants())
        if any(word in variant.stage for word in options.only)
    ]
    now = speedups(off("", ""), sets, curves)
    few = {kind: cases[:: options.every * EVERY.get(kind, 1)] for kind, cases in sets.items()}
    shipped: dict[tuple[Costs, str], dict[Cell, float]] = {}
    show, outcomes = progress_line("variants"), []
    for done, variant in enumerate(variants):
        show(done, len(variants))
        key = (variant.costs, variant.drafter)
        if key not in shipped:
            shipped[key] = speedups(replace(variant, patches=()), few, curves)
        found = speedups(variant, few, curves)
        changes = {cell: 100 * (found[cell] / full - 1) for cell, full in shipped[key].items()}
        outcomes.append(Outcome(variant, changes))
    heads = ("stage", "change", *sets, "worst cell")
    body = (
        f"All {options.part}-numbered requests, ember's tokenizer, the cost curves "
        f"{', '.join(options.costs)}. Nothing here was measured: speedups are predictions.\n\n"
        f"{shipped_table(now)}\n\n"
        "Change of the predicted speedup in percent, for each set the mean over the curves, and "
        f"the worst cell; one of {options.every} requests, and of the fill-ins one of four times "
        "as many. The requests are few, so a cell moves by about 1 with any change, and a set's "
        "mean by about 0.4. Where the costs are named, the published ones are changed: otherwise "
        "the planner's costs are always right, and a pipeline saves nothing. Bounds on searches "
        "(MAX_PLACES, VISITED, MAX_COMPARED) save time as well.\n\n"
        f"{markdown_table(heads, [outcome.row() for outcome in outcomes])}"
    )
    result = {
        "speedups": by_name(now, 4),
        "rows": [outcome.as_json() for outcome in outcomes],
    }
    record(options.name, "What each stage of `auto` and the planner brings", body, result)


if __name__ == "__main__":
    main()
