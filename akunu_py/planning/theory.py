"""The arithmetic of speculation: the expected gain of a draft, and the acceptance it needs to pay.

Pure functions of acceptance rates and costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from operator import mul
from typing import Final

from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.row_class import BLOCK_ROWS, RowClass

_EVEN_ENOUGH: Final = 0.02
"""Draft lengths whose speed differs by less than this count as equally good."""
_MIN_GAIN: Final = 1.03
"""A smaller speedup does not count as one."""

MAX_BATCH_ROWS: Final = 64
"""The most rows of a batched pass whose drafts `share_rows` cuts, and for which costs are learnt.
Sequences whose drafts must not be cut may have more."""

COPY_ACCEPTANCE: Final = 0.95
"""How often the tokens of a copy are right if text is repeated with changes."""

TIE: Final = 1e-9
"""A longer draft must be faster by more than this fraction."""


def expected_accepted(num_draft_tokens: int, acceptance: float) -> float:
    """How many draft tokens are accepted on average if each has the same probability: the sum over
    k of a^k. akunu's book writes it as E = sum over k < D of k a^k (1 - a), + D a^D."""
    return sum(acceptance**k for k in range(1, num_draft_tokens + 1))


def expected_tokens(accept_probs: Sequence[float]) -> list[float]:
    """The tokens that a round emits on average with the first 0, 1, 2 ... draft tokens; each has a
    probability to be accepted if those before it are."""
    reached = accumulate(accept_probs, mul)
    return list(accumulate(reached, initial=1.0))


def expected_replays(expected: Sequence[float], replayed: int) -> list[float]:
    """The tokens that the next forward pass computes again on average, after 1, 2 ... draft tokens.

    This is for caches that return to the state before a pass unless its whole draft is accepted.
    They must then compute again the known token, the accepted ones, and those that the pass itself
    computed again (`replayed`).
    """
    rows = []
    for length, (before, after) in enumerate(pairwise(expected), start=1):
        whole = after - before  # the probability that all `length` tokens are accepted
        rows.append(before - length * whole + replayed * (1.0 - whole))
    return rows


def replay_s(forwards: Sequence[float], rows: float, size: int) -> float:
    """Seconds that computing `rows` tokens again, on average, adds to the next pass: a single step,
    or one over `size` draft tokens. `forwards` are the times of passes over 1, 2 ... tokens."""

    def after(tokens: float) -> float:
        whole = min(int(tokens), len(forwards) - 1)
        above = min(whole + 1, len(forwards) - 1)
        return forwards[whole] + (tokens - whole) * (forwards[above] - forwards[whole])

    return (after(rows) - after(0) + after(size + rows) - after(size)) / 2


def share_rows(
    drafts: Sequence[Sequence[float]], seconds: Sequence[float], emitted: float
) -> tuple[list[int], float]:
    """How many tokens of each draft a batched pass should verify to emit the most per second, and
    how many it then emits per second. `drafts` are arguments of `expected_tokens`, `seconds` the
    times of a pass with 0, 1, 2 ... of their tokens, `emitted` what it emits on average without
    any.

    The probability that a token is reached and accepted never rises along a draft. So for any
    number of rows, the best choice is the most probable tokens, of whatever sequence.
    """
    reached = sorted(
        (
            (-probability, index)
            for index, accept_probs in enumerate(drafts)
            for probability in accumulate(accept_probs, mul)
        ),
        key=lambda token: token[0],
    )[: max(0, len(seconds) - 1)]
    most, best = 0, emitted / seconds[0] if seconds else 0.0
    for count, (probability, _) in enumerate(reached, start=1):
        emitted -= probability
        speed = emitted / seconds[count]
        if speed > best * (1.0 + TIE):
            most, best = count, speed
    lengths = [0] * len(drafts)
    for _, index in reached[:most]:
        lengths[index] += 1
    return lengths, best


def predicted_speedup(
    curve: CostCurve, num_draft_tokens: int, acceptance: float, context: int
) -> float:
    """Tokens per second with `num_draft_tokens` per round, relative to pipelined decoding."""
    if num_draft_tokens == 0:
        return 1.0
    tokens = 1.0 + expected_accepted(num_draft_tokens, acceptance)
    return tokens * curve.decode_s(context) / curve.verify_s(1 + num_draft_tokens, context)


def break_even(curve: CostCurve, num_draft_tokens: int, context: int) -> float | None:
    """The lowest acceptance rate at which `num_draft_tokens` per round pay; None if none does."""
    if predicted_speedup(curve, num_draft_tokens, 1.0, context) <= 1.0:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if predicted_speedup(curve, num_draft_tokens, middle, context) > 1.0:
            high = middle
        else:
            low = middle
    return high


def best_num_draft_tokens(curve: CostCurve, acceptance: float, context: int, most: int) -> int:
    """The smallest number of draft tokens, perhaps 0, that is about as fast as the best number."""
    speedups = [predicted_speedup(curve, k, acceptance, context) for k in range(most + 1)]
    enough = max(speedups) * (1.0 - _EVEN_ENOUGH)
    return next(k for k, speedup in enumerate(speedups) if speedup >= enough)


def price_of_class(curve: CostCurve, alike: RowClass) -> float:
    """By which fraction a text takes longer at a short context if all passes are in a class: a text
    without drafts, or a copy, whichever is more."""
    padded = curve.with_steps_of(alike.smallest)
    step = padded.decode_s(0) / curve.decode_s(0)
    return _price(curve, step, _best_copies(padded, alike.largest) / step)


def price_of_blocks(curve: CostCurve) -> float:
    """The same for blocks."""
    step = curve.verify_s(BLOCK_ROWS, 0) / curve.decode_s(0)
    return _price(curve, step, predicted_speedup(curve, BLOCK_ROWS - 1, COPY_ACCEPTANCE, 0))


def _price(curve: CostCurve, step: float, copies: float) -> float:
    return max(step, _best_copies(curve, MAX_PLANNED_TOKENS + 1) / copies) - 1.0


def _best_copies(curve: CostCurve, most: int) -> float:
    return max(predicted_speedup(curve, k, COPY_ACCEPTANCE, 0) for k in range(most))


def affordable(curve: CostCurve, alike: RowClass, most_price: float) -> RowClass | None:
    """The class up to the first number of keys at which it costs more than `most_price`, with
    drafts of any length from there on; None if it costs more from the beginning."""

    def pays(level: tuple[int, int]) -> bool:
        return price_of_class(curve, RowClass(alike.smallest, ((0, level[1]),))) <= most_price

    kept = tuple(takewhile(pays, alike.levels))
    if not kept:
        return None
    if len(kept) < len(alike.levels):
        alike = replace(alike, levels=kept, end=alike.levels[len(kept)][0])
    return alike.unbounded


@dataclass(frozen=True)
class Payoff:
    """Whether drafting pays on this machine.

    It pays from this `acceptance` rate on (None if it never does), with `drafts` tokens. If all are
    accepted, `most_drafts` are best, with `best_speedup`.
    """

    acceptance: float | None
    drafts: int
    most_drafts: int
    best_speedup: float

    @property
    def pays(self) -> bool:
        return self.acceptance is not None and self.best_speedup >= _MIN_GAIN

    def __str__(self) -> str:
        if self.acceptance is None or not self.pays:
            return "Drafting does not pay here: verifying drafts costs as much as they could save."
        return (
            f"Drafting pays here from {self.acceptance:.0%} acceptance, with {self.drafts} draft "
            f"token{'' if self.drafts == 1 else 's'} per round. With {self.most_drafts} that are "
            f"all accepted, decoding is {self.best_speedup:.1f}x as fast."
        )


def assess(curve: CostCurve, context: int, most: int) -> Payoff:
    """The payoff of drafts of at most `most` tokens."""
    thresholds = [
        (threshold, length)
        for length in range(1, most + 1)
        if (threshold := break_even(curve, length, context)) is not None
    ]
    longest = best_num_draft_tokens(curve, 1.0, context, most)
    speedup = predicted_speedup(curve, longest, 1.0, context)
    if not thresholds:
        return Payoff(None, 0, 0, 1.0)
    acceptance, length = min(thresholds)
    return Payoff(acceptance, length, longest, speedup)
