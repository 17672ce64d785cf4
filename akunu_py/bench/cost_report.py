"""`bench cost`: what forwards of a model cost here, from when drafts pay, and what theory says.

A measured curve comes in; a report goes out, as tables, as JSON, or as a plot (`plots.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.theory import (
    Payoff,
    assess,
    break_even,
    expected_accepted,
    predicted_speedup,
)

DRAFT_LENGTHS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
ACCEPTANCES: Final = (0.5, 0.7, 0.9, 1.0)
THEORY_ACCEPTANCES: Final = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class CostReport:
    """A curve and what follows from it.

    Attributes:
        machine: where it was measured, as `describe_machine` tells it.
        model: what was measured: its name, layout and bytes.
        curve: what was measured.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    curve: CostCurve

    @property
    def context(self) -> int:
        """The context that thresholds and speedups are told for: the shortest one measured."""
        return self.curve.levels[0].context

    @property
    def lengths(self) -> list[int]:
        """The numbers of drafts that are told of: none beyond what was measured."""
        return [drafts for drafts in DRAFT_LENGTHS if drafts < self.curve.longest]

    @property
    def payoff(self) -> Payoff:
        """Whether drafting pays."""
        return assess(self.curve, self.context, max(self.lengths, default=1))

    def as_json(self) -> dict[str, Any]:
        """All of it, in JSON's types."""
        return {
            "machine": self.machine,
            "model": self.model,
            "curve": self.curve.as_json(),
            "context": self.context,
            "drafts": [
                {
                    "drafts": drafts,
                    "break_even_acceptance": break_even(self.curve, drafts, self.context),
                    "predicted_speedup": {
                        str(acceptance): self.speedup(drafts, acceptance)
                        for acceptance in ACCEPTANCES
                    },
                }
                for drafts in self.lengths
            ],
            "expected_accepted": {
                str(drafts): {
                    str(acceptance): round(expected_accepted(drafts, acceptance), 4)
                    for acceptance in THEORY_ACCEPTANCES
                }
                for drafts in DRAFT_LENGTHS
            },
            "payoff": asdict(self.payoff) | {"sentence": str(self.payoff)},
        }

    def speedup(self, drafts: int, acceptance: float) -> float:
        """What so many drafts a round are predicted to bring."""
        return predicted_speedup(self.curve, drafts, acceptance, self.context)

    def tables(self) -> Group:
        """The costs, the thresholds and the theory, to be printed by rich."""
        return Group(
            "Milliseconds of a round over M tokens, by tokens of context",
            self._costs(),
            f"\nFrom when K drafts a round pay, at {self.context:,} tokens of context: "
            "the acceptance that they need, and the speedup at others",
            self._thresholds(),
            "\nTheory: tokens accepted a round with D drafts, E = sum k a^k (1 - a) + D a^D",
            _theory(),
        )

    def _costs(self) -> Table:
        table = _table()
        table.add_column("M", justify="right")
        for level in self.curve.levels:
            table.add_column(f"{level.context:,}", justify="right")
        table.add_column("of a step", justify="right")
        contexts = [level.context for level in self.curve.levels]
        steps = [self.curve.decode_s(context) for context in contexts]
        table.add_row("1, pipelined", *(f"{1e3 * step:.2f}" for step in steps), "1.00")
        for size, _ in self.curve.levels[0].verify_s:
            costs = [self.curve.verify_s(size, context) for context in contexts]
            table.add_row(
                str(size), *(f"{1e3 * cost:.2f}" for cost in costs), f"{costs[0] / steps[0]:.2f}"
            )
        return table

    def _thresholds(self) -> Table:
        table = _table()
        table.add_column("K", justify="right")
        table.add_column("break-even", justify="right")
        for acceptance in ACCEPTANCES:
            table.add_column(f"at {acceptance:.0%}", justify="right")
        for drafts in self.lengths:
            threshold = break_even(self.curve, drafts, self.context)
            speedups = (self.speedup(drafts, acceptance) for acceptance in ACCEPTANCES)
            table.add_row(
                str(drafts),
                "never" if threshold is None else f"{threshold:.0%}",
                *(f"{speedup:.2f}x" for speedup in speedups),
            )
        return table


def curve_lines(curve: CostCurve) -> Iterator[str]:
    """A curve in a line for each context."""
    for level in curve.levels:
        costs = (
            f"{drafts + 1}: {1e3 * curve.verify_s(drafts + 1, level.context):.2f}"
            for drafts in (0, 1, 4, 8, 16, 32)
            if drafts < curve.longest
        )
        yield (
            f"context {level.context:,}: a step {1e3 * curve.decode_s(level.context):.2f} ms, "
            f"rounds of {', '.join(costs)} ms"
        )


def _theory() -> Table:
    table = _table()
    table.add_column("D", justify="right")
    for acceptance in THEORY_ACCEPTANCES:
        table.add_column(f"a = {acceptance:g}", justify="right")
    for drafts in DRAFT_LENGTHS:
        values = (expected_accepted(drafts, acceptance) for acceptance in THEORY_ACCEPTANCES)
        table.add_row(str(drafts), *(f"{value:.2f}" for value in values))
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2))
