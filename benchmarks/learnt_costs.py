"""How soon the planner is as fast as the best fixed length if it begins with wrong costs.

    python -m benchmarks.learnt_costs [--every N]

A simulation: true costs of six kinds at several contexts, texts of several kinds, times with 10 %
noise, and curves to begin with that are wrong by up to 5 times, in scale and in shape. Each kind of
costs meets each curve, with a text and a context in turn. Nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Final

from akunu_py.calibration.cost_store import published_curves
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import DOUBTFUL, MEASURED, CostCurve, CostLevel
from akunu_py.planning.planner import DraftPlanner, FixedPlanner
from benchmarks.records import markdown_table, options_of, progress_line, record
from tests.planning.simulation import Simulated, Stretch, Text, regret_s, simulate

LEARNING: Final = 2000
"""From this token on, speeds are compared."""
TOKENS: Final = 5000
CONTEXTS: Final = (1024, 8192, 65536)
KNOWN_CONTEXTS: Final = (128, 1024, 4096)
"""Of the curve to begin with: longer contexts are extrapolated from them."""
LENGTHS: Final = (0, 1, 2, 4, 8, 16, 32)
NOISE: Final = 0.1
HICCUPS: Final = 0.03
"""The part of all times that are three times as long or as short."""
_MOST: Final = 5.0
_ROWS: Final = range(1, MAX_PLANNED_TOKENS + 2)
_STEP_MS: Final = 10.0

Shape = Callable[[float], float]


def _within(value: float, bound: float) -> float:
    return max(-bound, min(bound, value))


@dataclass(frozen=True)
class Kind:
    """A kind of machine.

    Attributes:
        rows: what the weights of a round cost, in steps, by its rows.
        attention: likewise, what its attention costs, in that of a step.
        overlap: what a pipelined step saves, in steps.
    """

    rows: Shape
    attention: Shape
    overlap: float = 0.05

    def curve(self, contexts: Sequence[int]) -> CostCurve:
        """Its costs, if attention takes as long as the weights at 32,768 tokens."""
        return CostCurve(tuple(map(self._level, contexts)))

    def _level(self, context: int) -> CostLevel:
        share = context / 32768
        costs = [
            _STEP_MS / 1000 * (self.rows(rows) + share * self.attention(rows)) for rows in _ROWS
        ]
        step = costs[0] - self.overlap * _STEP_MS / 1000
        return CostLevel(context, step, tuple(zip(_ROWS, costs, strict=True)))


def published(name: str) -> Shape:
    """The costs of rows that were published for a chip."""
    curve = published_curves()[name].curve
    return lambda rows: curve.verify_s(int(rows), 0)


def cliff(rows_at_most: int) -> Shape:
    """Attention that takes twice as long beyond some rows, where another kernel begins."""
    return lambda rows: (1.0 + 0.08 * (rows - 1)) * (1.0 if rows <= rows_at_most else 2.0)


def kinds() -> dict[str, Kind]:
    return {
        "flat": Kind(lambda rows: 1.0 + 0.001 * (rows - 1), lambda _: 1.0),
        "linear": Kind(float, float, 0.0),
        "stepped": Kind(
            lambda rows: 1.0 + 0.8 * ((rows - 1) // 5), lambda rows: 1.0 + 0.05 * (rows - 1), 0.1
        ),
        "M1-like": Kind(lambda rows: 1.0 + 0.8 * (rows - 1), lambda rows: 1.0 + 0.3 * (rows - 1)),
        "M4-like": Kind(published("m4-pro"), cliff(5), 0.1),
        "M5-like": Kind(published("m5-max"), cliff(8), 0.1),
    }


def walk(seed: int) -> Shape:
    """A random factor from 1/5 to 5, by rows; 1 at 1 row."""
    draw = Random(seed)
    logs = [0.0]
    for _ in range(6):
        logs.append(_within(logs[-1] + draw.gauss(0.0, 0.9), math.log(_MOST)))

    def factor(rows: float) -> float:
        place = math.log2(rows)
        below = min(int(place), len(logs) - 2)
        return math.exp(logs[below] + (place - below) * (logs[below + 1] - logs[below]))

    return factor


@dataclass(frozen=True)
class Error:
    """How a curve to begin with is wrong: factors on all costs, and on rounds by their rows.

    If `straight` is given, rounds cost as many steps as it says instead, as far as a factor of 5
    allows.
    """

    scale: float = 1.0
    by_rows: Shape = lambda _: 1.0
    straight: Shape | None = None

    def applied(self, curve: CostCurve, doubt: float) -> CostCurve:
        """The wrong curve; its rounds never fall with rows."""
        return CostCurve(tuple(map(self._level, curve.levels)), doubt=doubt)

    def _level(self, level: CostLevel) -> CostLevel:
        first, most, rounds = level.verify_s[0][1], 0.0, []
        for rows, cost in level.verify_s:
            factor = self.by_rows(rows)
            if self.straight is not None:
                factor = math.exp(
                    _within(math.log(self.straight(rows) * first / cost), math.log(_MOST))
                )
            most = max(most, self.scale * factor * cost)
            rounds.append((rows, most))
        return CostLevel(level.context, min(level.decode_s * self.scale, most), tuple(rounds))


LONGEST: Final = math.log2(_ROWS[-1])
ERRORS: Final = {
    "none": Error(),
    "all x 5": Error(5.0),
    "all / 5": Error(1 / 5),
    "up to x 5 with rows": Error(by_rows=lambda rows: _MOST ** (math.log2(rows) / LONGEST)),
    "up to / 5 with rows": Error(by_rows=lambda rows: _MOST ** (-math.log2(rows) / LONGEST)),
    "2 rows and more x 5": Error(by_rows=lambda rows: _MOST if rows > 1 else 1.0),
    "believed flat": Error(straight=lambda _: 1.0),
    "believed linear": Error(straight=float),
    "random, all x 3": Error(3.0, walk(1)),
    "random, all / 2.5": Error(0.4, walk(2)),
    "random": Error(1.0, walk(3)),
}
TEXTS: Final = {
    "copy": [Stretch(TOKENS, 0.97, 12)],
    "middling": [Stretch(TOKENS, 0.6, 3)],
    "edit": [Stretch(40, 0.97, 12), Stretch(4, None), Stretch(10, 0.4, 1)] * (TOKENS // 54),
    "mixed": [Stretch(60, None), Stretch(120, 0.9, 8), Stretch(80, 0.35, 2)] * (TOKENS // 260),
    "prose": [Stretch(30, None), Stretch(6, 0.25, 1)] * (TOKENS // 36),
    "even": [Stretch(TOKENS, 0.8, 3)],
}


@dataclass(frozen=True)
class Cell:
    """One simulation.

    Attributes:
        names: of the costs, the context, the text and the error.
        learnt: the speed after `LEARNING` tokens, over that of the best fixed length there.
        whole: the same from the first token on.
        regret: the part of all time that probes lost.
    """

    names: tuple[str, ...]
    learnt: float
    whole: float
    regret: float


def cells(doubt: float, every: int = 1, first: int = 0) -> Iterator[Cell]:
    """Simulates each kind of costs with each error, or every one of so many."""
    count = 0
    for at, (name, kind) in enumerate(kinds().items()):
        for index, (error, wrong) in enumerate(ERRORS.items()):
            count += 1
            if count % every != first:
                continue
            context = CONTEXTS[(index + at) % len(CONTEXTS)]
            told = list(TEXTS)[(2 * index + at + index // 3) % len(TEXTS)]
            true, text = kind.curve((0, context, 2 * context)), Text(TEXTS[told], seed=3)
            # Without estimates, a fixed number of draft tokens is verified whole.
            whole_drafts = Text(TEXTS[told], seed=3, has_probs=False)
            fixed = [
                list(simulate(whole_drafts, true, FixedPlanner(length), context=context))
                for length in LENGTHS
            ]
            planner = DraftPlanner(wrong.applied(kind.curve(KNOWN_CONTEXTS), doubt))
            ours = list(
                simulate(text, true, planner, context=context, noise=NOISE, hiccups=HICCUPS)
            )
            learnt, whole = (
                min(_pace(rounds, since, len(text)) for rounds in fixed)
                / _pace(ours, since, len(text))
                for since in (LEARNING, 0)
            )
            lost = regret_s(ours, text, true, context) / sum(done.seconds for done in ours)
            yield Cell((name, f"{context:,}", told, error), learnt, whole, lost)


def _pace(rounds: Sequence[Simulated], since: int, end: int) -> float:
    """Seconds a token from the first round on that begins at `since` or later."""
    counted = [done for done in rounds if done.start >= since]
    return sum(done.seconds for done in counted) / (end - counted[0].start)


def main() -> None:
    parser = options_of(__doc__, name="learnt_costs")
    parser.add_argument("--every", type=int, default=1, help="simulate every one of so many")
    options = parser.parse_args()
    found = {}
    for name, doubt in {"doubtful": DOUBTFUL, "measured here": MEASURED}.items():
        show, done = progress_line(name), []
        for cell in cells(doubt, options.every):
            done.append(cell)
            show(len(done), len(ERRORS) * len(kinds()) // options.every)
        found[name] = done
    rows = [
        (
            name,
            len(done),
            f"{min(cell.learnt for cell in done):.3f}",
            f"{fmean(cell.learnt for cell in done):.3f}",
            sum(cell.learnt < 0.95 for cell in done),
            f"{min(cell.whole for cell in done):.3f}",
            f"{fmean(cell.whole for cell in done):.3f}",
            f"{max(cell.regret for cell in done):.2%}",
        )
        for name, done in found.items()
    ]
    heads = ("the curve counts as", "cells", f"after {LEARNING:,} tokens: worst", "mean",
             "below 0.95", "from the first: worst", "mean", "most lost by probes")  # fmt: skip
    worst = [
        (name, *cell.names, f"{cell.learnt:.3f}", f"{cell.whole:.3f}", f"{cell.regret:.2%}")
        for name, done in found.items()
        for cell in sorted(done, key=lambda cell: cell.learnt)[:5]
    ]
    body = (
        f"Simulated. Speeds relative to the best fixed num_draft_tokens of {LENGTHS}, which is "
        "known only afterwards.\n\n"
        f"{markdown_table(heads, rows)}\n\nThe worst cells:\n\n"
        + markdown_table(
            (
                "the curve counts as",
                "costs",
                "context",
                "text",
                "error",
                "learnt",
                "whole",
                "probes",
            ),
            worst,
        )
    )
    result = {
        name: [[*cell.names, *(round(x, 4) for x in (cell.learnt, cell.whole, cell.regret))]
               for cell in done]
        for name, done in found.items()
    }  # fmt: skip
    record(options.name, "Costs learnt from wrong beginnings", body, result)


if __name__ == "__main__":
    main()
