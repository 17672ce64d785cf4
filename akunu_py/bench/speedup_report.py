"""The results of `bench speedup`, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from rich.console import Group, RenderableType

from akunu_py.bench.measurement import Spread, figures_table
from akunu_py.bench.speedup import FORCED, OWN, SAMPLED, SpeedupRow
from akunu_py.planning.cost_curve import CostCurve

_ABOUT: Final = {
    OWN: "the model's own answers",
    FORCED: "forced answers: the reference's tokens are taken as the model's choices, "
    "and every forward is computed and paid for",
}
_HEADS: Final = (
    "",
    "ms a\ntoken",
    "speedup\n(quartiles)",
    "\npredicted",
    "tokens a\nforward",
    "accept-\nance",
    "% of the time: draft,\nforward, text, rest",
    "same\nanswers",
)
_PLANNED: Final = " + planner"


@dataclass(frozen=True)
class PlannerCheck:
    """How a planned drafter compares with the best fixed num_draft_tokens, known afterwards.

    Attributes:
        planned: the drafter's median speedup with the planner.
        best: the median speedup of the best fixed num_draft_tokens; plain decoding is one of them.
        best_name: the contestant that was best: the planner reaches the smallest share of it.
        share: the planner's speed over the best contestant's: the median over answers, and its
            95% interval.
        over_plain: the planner's median speedup over plain decoding.
    """

    kind: str
    answers: str
    drafter: str
    planned: float
    best: float
    best_name: str
    share: Spread
    over_plain: float


@dataclass(frozen=True)
class SpeedupReport:
    """All that was measured; machine and model as `measurement.py` describes them.

    Attributes:
        max_tokens: how long answers could be.
        rounds: how often each contestant answered each request.
        complete: whether the run was not interrupted.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    curve: CostCurve
    max_tokens: int
    rounds: int
    rows: Sequence[SpeedupRow]
    complete: bool = True

    @property
    def prediction_error(self) -> float | None:
        """The median relative distance of measured speedups from predicted ones, if any."""
        errors = [
            abs(row.speedup.median / row.predicted - 1)
            for row in self.rows
            if row.predicted is not None
        ]
        return median(errors) if errors else None

    def as_json(self) -> dict[str, Any]:
        """The object that `bench speedup --json` prints."""
        return {
            "machine": self.machine,
            "model": self.model,
            "curve": self.curve.as_json(),
            "max_tokens": self.max_tokens,
            "rounds": self.rounds,
            "complete": self.complete,
            "answers": _ABOUT,
            "prediction_error": self.prediction_error,
            "planner": [asdict(check) for check in self.planner_checks()],
            "rows": [_row_json(row) for row in self.rows],
        }

    def tables(self) -> Group:
        """One table for each workload, to be printed by rich."""
        parts: list[RenderableType] = []
        for kind, answers in dict.fromkeys((row.kind, row.answers) for row in self.rows):
            rows = [row for row in self.rows if (row.kind, row.answers) == (kind, answers)]
            sampled = ", sampled" if answers == OWN and kind in SAMPLED else ""
            parts += [
                f"{kind}: {_ABOUT[answers]}{sampled}; {rows[-1].repeated:.0%} of their 4-grams "
                "seen before",
                figures_table(_HEADS, map(_cells, rows)),
                "",
            ]
        return Group(*parts, *self._summary())

    def _summary(self) -> Iterator[str]:
        if not self.complete:
            yield "The run was interrupted: some rows have fewer pairs, or are missing."
        if self.prediction_error is not None:
            yield (
                "Measured and predicted speedups are "
                f"{self.prediction_error:.0%} apart in the median."
            )
        for check in self.planner_checks():
            yield (
                f"{check.kind}, {check.answers}: {check.drafter} + planner reaches "
                f"{check.share:.0%} of the best fixed num_draft_tokens ({check.best_name}), "
                f"and is {check.over_plain:.2f}x as fast as no drafts."
            )

    def planner_checks(self) -> Iterator[PlannerCheck]:
        """A check for every workload and drafter that ran planned and with fixed lengths."""
        for row in self.rows:
            drafter, planned, _ = row.contestant.partition(_PLANNED)
            if not planned:
                continue
            fixed = [
                other
                for other in self.rows
                if (other.kind, other.answers) == (row.kind, row.answers)
                and other.contestant.startswith(("plain", f"{drafter}, num_draft_tokens="))
            ]
            if len(fixed) > 1:
                shares = [row.speed_of(other) for other in fixed]
                share, best = min(zip(shares, fixed, strict=True), key=lambda one: one[0].median)
                yield PlannerCheck(
                    row.kind, row.answers, drafter, row.speedup.median,
                    best.speedup.median, best.contestant, share, row.over_plain.median,
                )  # fmt: skip


def _cells(row: SpeedupRow) -> tuple[str, ...]:
    shares = row.shares
    if shares is None:
        return row.contestant, f"{row.milliseconds.median:.2f}", "1", "", "1.00", "", "", ""
    parts = (shares[name] for name in ("drafting", "forward", "detokenizing", "rest"))
    same = "" if row.same is None else f"{row.same}/{len(row.pairs)}"
    if row.differences:
        same += f", from {min(row.differences)}"
    return (
        row.contestant,
        f"{row.milliseconds.median:.2f}",
        f"{row.speedup:.2f}",
        f"{row.predicted:.2f}" if row.predicted else "",
        f"{row.rounds.tokens_per_forward:.2f}",
        f"{row.rounds.acceptance:.0%}" if row.rounds.drafted else "",
        ", ".join(f"{100 * part:.0f}" for part in parts),
        same,
    )


def _row_json(row: SpeedupRow) -> dict[str, Any]:
    rounds = row.rounds
    return {
        "workload": row.kind,
        "answers": row.answers,
        "sampled": row.answers == OWN and row.kind in SAMPLED,
        "contestant": row.contestant,
        "pairs": len(row.pairs),
        "ms_per_token": _spread_json(row.milliseconds),
        "speedup": _spread_json(row.speedup),
        "over_plain": _spread_json(row.over_plain),
        "predicted_speedup": row.predicted,
        "tokens_per_forward": rounds.tokens_per_forward,
        "drafted": rounds.drafted,
        "accepted": rounds.accepted,
        "acceptance": rounds.acceptance,
        "repeated_share": row.repeated,
        "compared_with": row.compared_with,
        "same_answers": row.same,
        "differences_at": list(row.differences),
        "shares": row.shares,
    }


def _spread_json(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "lower_quartile": spread.low, "upper_quartile": spread.high}
