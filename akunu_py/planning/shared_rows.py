"""One budget of rows for the drafts of several sequences.

A batched forward has a row for the known token of each sequence and one for each draft token, and
its time depends on their number. So the tokens that are most likely to be accepted come first,
whosever they are, as long as another row brings more tokens per second in all. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Final

MAX_BATCH_ROWS: Final = 64
"""The most rows of a batched forward whose drafts are cut here; what is learnt of costs ends with
them. Sequences that may not be cut may have more."""

_TIE: Final = 1e-9


def share_rows(
    drafts: Sequence[Sequence[float]], seconds: Sequence[float], emitted: float
) -> list[int]:
    """How many tokens of each draft a batched forward should verify, to emit most per second.

    The probability that a token is reached and accepted never rises along a draft. So the best
    choice of any number of rows is that of the most probable tokens.

    Args:
        drafts: for each sequence, the probability of each draft token that it is accepted if those
            before it are.
        seconds: what a forward takes with 0, 1, 2 ... of these tokens; there are no more rows
            than it has entries for.
        emitted: the tokens that it emits on average with none: one for each sequence, and what is
            accepted of drafts that are verified in any case.
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
        if speed > best * (1.0 + _TIE):
            most, best = count, speed
    lengths = [0] * len(drafts)
    for _, index in reached[:most]:
        lengths[index] += 1
    return lengths
