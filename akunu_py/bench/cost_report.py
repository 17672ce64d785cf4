"""`bench cost`: what forwards of a model cost here, when drafts pay, and what theory predicts.

A measured curve comes in; a report goes out as tables or JSON. `plots.py` draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from akunu_py.bench.measurement import figures_table
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
    """A curve and what follows from it; machine and model as `measurement.py` describes them.

    `alone` has the costs of one rank with the whole model, if `curve` has those of several.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    curve: CostCurve
    alone: CostCurve | None = None

    @property
    def context(self) -> int:
        """The context of the thresholds and speedups: the shortest one that was measured."""
        return self.curve.levels[0].context

    @property
    def lengths(self) -> list[int]:
        """The values of num_draft_tokens in the report: none beyond what was measured."""
        return [length for length in DRAFT_LENGTHS if length < self.curve.longest]

    @property
    def payoff(self) -> Payoff:
        """Whether drafting pays."""
        return assess(self.curve, self.context, max(self.lengths, default=1))

    def as_json(self) -> dict[str, Any]:
        """The object that `bench cost --json` prints."""
        alone = {} if self.alone is None else {"alone": self.alone.as_json()}
        return alone | {
            "machine": self.machine,
            "model": self.model,
            "curve": self.curve.as_json(),
            "context": self.context,
            "drafts": [
                {
                    "drafts": length,
                    "break_even_acceptance": break_even(self.curve, length, self.context),
                    "predicted_speedup": {
                        str(acceptance): self.speedup(length, acceptance)
                        for acceptance in ACCEPTANCES
                    },
                }
                for length in self.lengths
            ],
            "expected_accepted": {
                str(length): {
                    str(acceptance): round(expected_accepted(length, acceptance), 4)
                    for acceptance in THEORY_ACCEPTANCES
                }
                for length in DRAFT_LENGTHS
            },
            "payoff": asdict(self.payoff) | {"sentence": str(self.payoff)},
        }

    def speedup(self, num_draft_tokens: int, acceptance: float) -> float:
        """The predicted speedup of rounds with this many draft tokens."""
        return predicted_speedup(self.curve, num_draft_tokens, acceptance, self.context)

    def tables(self) -> Group:
        """The costs, the thresholds and the theory, to be printed by rich."""
        return Group(
            "Milliseconds per forward over M tokens, by tokens of context",
            figures_table(*self.costs(), first="right"),
            *self.padding(),
            *self._alone_lines(),
            f"\nWhen drafts pay, at {self.context:,} tokens of context: the acceptance rate that "
            "num_draft_tokens needs to break even, and the speedup at other rates",
            self._thresholds(),
            f"\nAfter a rejected draft: {self.model['after_rejection']}",
            "\nTheory: accepted tokens per round of D draft tokens, E = sum k a^k (1 - a) + D a^D",
            _theory(),
        )

    def costs(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The heads and the rows of the table of costs."""
        contexts = [level.context for level in self.curve.levels]
        steps = [self.curve.decode_s(context) for context in contexts]
        rows = [("1, pipelined", *(f"{1e3 * step:.2f}" for step in steps), "1.00")]
        for size, _ in self.curve.levels[0].verify_s:
            costs = [self.curve.verify_s(size, context) for context in contexts]
            relative = f"{costs[0] / steps[0]:.2f}"
            rows.append((str(size), *(f"{1e3 * cost:.2f}" for cost in costs), relative))
        return ("M", *(f"{context:,}" for context in contexts), "of a step"), rows

    def padding(self) -> list[str]:
        """One line on the drafted rounds that are padded, if there are any."""
        if not self.curve.is_padded:
            return []
        padding, spans = self.curve.padding, []
        for size in dict.fromkeys(padding.values()):
            tokens = [few for few, many in padding.items() if many == size]
            spans.append(f"{tokens[0]}-{tokens[-1]} to {size}")
        return [f"Drafted rounds over few tokens are padded, which is faster: {', '.join(spans)}."]

    def _alone_lines(self) -> list[str]:
        if self.alone is None:
            return []
        return ["\nOne rank alone, with the whole model:", *curve_lines(self.alone)]

    def _thresholds(self) -> Table:
        rows = []
        for length in self.lengths:
            threshold = break_even(self.curve, length, self.context)
            speedups = (self.speedup(length, acceptance) for acceptance in ACCEPTANCES)
            pays = "never" if threshold is None else f"{threshold:.0%}"
            rows.append((str(length), pays, *(f"{speedup:.2f}x" for speedup in speedups)))
        heads = ("num_draft_tokens", "break-even", *(f"at {rate:.0%}" for rate in ACCEPTANCES))
        return figures_table(heads, rows, first="right")


def curve_lines(curve: CostCurve) -> Iterator[str]:
    """A curve, one line for each context."""
    for level in curve.levels:
        costs = (
            f"{size} tokens {1e3 * curve.verify_s(size, level.context):.2f}"
            for size in (2, 5, 9, 17, 33)
            if size <= curve.longest
        )
        single = 1e3 * curve.verify_s(1, level.context)
        yield (
            f"context {level.context:,}: a pipelined step "
            f"{1e3 * curve.decode_s(level.context):.2f} ms; "
            f"forwards of {', '.join([f'1 token {single:.2f}', *costs])} ms"
        )


def _theory() -> Table:
    heads = ("D", *(f"a = {acceptance:g}" for acceptance in THEORY_ACCEPTANCES))
    rows = []
    for length in DRAFT_LENGTHS:
        values = (expected_accepted(length, acceptance) for acceptance in THEORY_ACCEPTANCES)
        rows.append((str(length), *(f"{value:.2f}" for value in values)))
    return figures_table(heads, rows, first="right")
