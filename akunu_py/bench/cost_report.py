"""`bench cost`: what forward passes of a model cost here, and when drafts pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from akunu_py.bench.measurement import heading, markdown_table
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.row_class import FREE
from akunu_py.planning.theory import (
    Payoff,
    affordable,
    assess,
    break_even,
    predicted_speedup,
    price_of_blocks,
    price_of_class,
)

DRAFT_LENGTHS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)
ACCEPTANCES: Final = (0.5, 0.7, 0.9, 1.0)

_Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The column heads and the rows of a table."""


@dataclass(frozen=True)
class CostReport:
    """A curve and what follows from it; machine and model as `measurement.py` describes them."""

    machine: dict[str, Any]
    model: dict[str, Any]
    curve: CostCurve

    @property
    def context(self) -> int:
        """The context of the thresholds and speedups: the shortest one that was measured."""
        return self.curve.levels[0].context

    @property
    def lengths(self) -> list[int]:
        """Draft lengths, none beyond what was measured."""
        return [length for length in DRAFT_LENGTHS if length < self.curve.longest]

    @property
    def payoff(self) -> Payoff:
        return assess(self.curve, self.context, max(self.lengths, default=1))

    def as_json(self) -> dict[str, Any]:
        return {
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
            "payoff": asdict(self.payoff) | {"sentence": str(self.payoff)},
        }

    def speedup(self, num_draft_tokens: int, acceptance: float) -> float:
        return predicted_speedup(self.curve, num_draft_tokens, acceptance, self.context)

    @property
    def heading(self) -> str:
        return heading(self.machine, self.model)

    def markdown(self) -> list[str]:
        return [
            "Milliseconds per forward pass over M tokens, by tokens of context:",
            markdown_table(*self.costs()),
            *self.padding(),
            f"{exactness_of(self.curve)}.",
            f"When drafts pay, at {self.context:,} tokens of context: the acceptance rate that "
            "num_draft_tokens needs to break even, and the speedup at other rates:",
            markdown_table(*self._thresholds()),
            f"{self.payoff} Rollback: {self.model['after_rejection']}.",
        ]

    def costs(self) -> _Cells:
        contexts = [level.context for level in self.curve.levels]
        steps = [self.curve.decode_s(context) for context in contexts]
        rows = [("1, pipelined", *(f"{1e3 * step:.2f}" for step in steps), "1.00")]
        for size, _ in self.curve.levels[0].verify_s:
            costs = [self.curve.verify_s(size, context) for context in contexts]
            relative = f"{costs[0] / steps[0]:.2f}"
            rows.append((str(size), *(f"{1e3 * cost:.2f}" for cost in costs), relative))
        return ("M", *(f"{context:,}" for context in contexts), "of a step"), rows

    def padding(self) -> list[str]:
        if not self.curve.is_padded:
            return []
        padding, spans = self.curve.padding, []
        for size in dict.fromkeys(padding.values()):
            tokens = [few for few, many in padding.items() if many == size]
            spans.append(f"{tokens[0]}-{tokens[-1]} to {size}")
        return [f"Drafted rounds over few tokens are padded, which is faster: {', '.join(spans)}."]

    def _thresholds(self) -> _Cells:
        rows = []
        for length in self.lengths:
            threshold = break_even(self.curve, length, self.context)
            speedups = (self.speedup(length, acceptance) for acceptance in ACCEPTANCES)
            pays = "never" if threshold is None else f"{threshold:.0%}"
            rows.append((str(length), pays, *(f"{speedup:.2f}x" for speedup in speedups)))
        return ("num_draft_tokens", "break-even", *(f"at {a:.0%}" for a in ACCEPTANCES)), rows


def exactness_of(curve: CostCurve) -> str:
    """Which forward passes compute rows identically, and what exact answers cost: a sentence
    without a full stop."""
    alike = curve.row_class
    if alike is None:
        return (
            "Drafts may change near-ties (ties within rounding); `bench cost` measures what "
            "--exact costs"
        )
    # None are compared if every class would cost more than blocks.
    compared = f" ({alike.rows:,} rows compared in {alike.seconds:.0f} s)" if alike.rows else ""
    if not alike.allows_drafts:
        return (
            "No sizes of forward pass are known that give identical rows at a lower cost than "
            f"blocks{compared}. With --exact, drafts change no token, which costs "
            f"{price_of_blocks(curve):.0%}"
        )
    usual = affordable(curve, alike, FREE)
    price = price_of_class(curve, alike)
    when = "With --exact" if usual is None else "By default, in an answer that is not batched,"
    like = "mlx-lm's" if alike.smallest == 1 else f"that of steps padded to {alike.smallest} tokens"
    return (
        f"Forward passes of {alike}{compared}. {when} drafts change no token, which costs "
        f"{price:.0%}, and the text is {like}"
    )


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
            f"forward passes of {', '.join([f'1 token {single:.2f}', *costs])} ms"
        )
