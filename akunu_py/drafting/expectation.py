"""Expectations: how likely a drafted token is to be accepted, learnt while a request runs.

A drafted token falls into a bucket, by its evidence (which source it comes from, and how strong the
evidence is) and its position in the draft. Each bucket starts from a prior and moves with every
outcome. How often the token followed the one before it (its bigram affinity) changes its odds.
Knows no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

POSITIONS: Final = 6
PRIOR_WEIGHT: Final = 4.0
MEMORY: Final = 64.0
"""A value is the mean of at most so many outcomes, so that older ones fade."""

TEXT_CLASSES: Final = (-1.0, 0.0, 1.0, 2.0)
"""How far the log-odds of each class of text are from the priors before anything is learnt: from
prose, where hardly anything is accepted, to a copy that hardly ever breaks."""

CHANGE: Final = 0.005
"""The probability that the text changes its class with the next outcome."""

_NEWCOMERS: Final = CHANGE / len(TEXT_CLASSES)
_FAINT: Final = 0.03
"""A class less likely than this learns nothing from an outcome, which saves time."""
_LEAST, _MOST = 0.002, 0.998

_COPY_RUNS: Final = (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4)
_MATCH_LENGTHS: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5)

_COPY: Final = 0
_MATCH: Final = _COPY + 5
_RESUMED: Final = _MATCH + 18
_IN_PLACE: Final = _RESUMED + 12
_REWRITE: Final = _IN_PLACE + 4
EVIDENCE: Final = _REWRITE + 3
"""How many kinds of evidence there are."""
_FIRST_REWRITE_BUCKET: Final = POSITIONS * _REWRITE

# The probabilities below were fitted by `python -m benchmarks.fit_expectations --data DATA`, on the
# even-numbered requests of `benchmarks/replay_data.py` under ember's tokenizer.

FIRST: Final = (
    # copy: the best match disagrees; it agrees, after runs of up to 8, 9-11, 12-16, 17 and more
    *(0.44, 0.53, 0.83, 0.91, 0.97),
    # match: lengths of 1, 2, 3, 4-5, 6-8, 9 and more; all occurrences agree, there is only one
    *(0.37, 0.25),
    *(0.69, 0.48),
    *(0.66, 0.50),
    *(0.77, 0.67),
    *(0.89, 0.76),
    *(0.61, 0.59),
    # match of any length: half of the occurrences agree, fewer
    *(0.32, 0.14),
    # match of the whole answer so far: all, only one, half, fewer
    *(0.37, 0.93, 0.94, 0.90),
    # resumed: 1 token agrees, or more; at its place, within 3 tokens, farther; the best match
    # disagrees, agrees
    *(0.39, 0.59, 0.19, 0.46, 0.16, 0.33),
    *(0.71, 0.84, 0.47, 0.73, 0.30, 0.56),
    # in place: after 1 replaced token, after 2; the best match disagrees, agrees
    *(0.22, 0.66, 0.08, 0.66),
    # rewrite: not begun and never repeated, not begun but repeated, begun
    *(0.90, 0.98, 0.99),
)
"""How likely the first token of a draft is to be accepted, for each kind of evidence."""

DOUBT: Final = (
    (1.00, 0.87, 0.76, 0.63, 0.55, 0.50),  # copy
    (1.00, 0.71, 0.49, 0.35, 0.35, 0.26),  # match, all occurrences agree or there is only one
    (1.00, 0.80, 0.80, 0.80, 0.61, 0.61),  # match, half agree or fewer
    (1.00, 0.68, 0.44, 0.25, 0.21, 0.10),  # resumed and in place
)
"""How much of the first token's doubt is left at position 0, 1, 2-3, 4-7, 8-15, 16 and later: the
tokens before it were accepted, so the source is probably right."""

AFFINITY_ODDS: Final = (
    *(1.71, 5.51, 15.87),
    *(0.38, 1.16, 1.50),
    *(0.61, 0.75, 1.41),
    *(0.41, 0.44, 0.69),
)
"""By what a bigram affinity (`bigram_affinity_of`) multiplies the odds: in rows by how often other
tokens followed, in columns by how often the same did. Rewrites are exempt, because they replace
what followed so far."""


def copy_evidence(run: int, agrees: bool) -> int:
    """The evidence of a copy of `run` tokens; `agrees`: the best match has the same next token."""
    return _COPY + (_COPY_RUNS[min(run, 17)] if agrees else 0)


def match_evidence(length: int, whole_answer: bool) -> tuple[int, int, int, int]:
    """By `Consensus`, the evidence of what followed occurrences of the last `length` tokens.

    Args:
        length: of the match.
        whole_answer: whether it goes back to the start of the answer. It cannot be longer then, and
            answers to similar requests often start alike.
    """
    if whole_answer:
        return _RESUMED - 4, _RESUMED - 3, _RESUMED - 2, _RESUMED - 1
    first = _MATCH + 2 * _MATCH_LENGTHS[min(length, 9)]
    return first, first + 1, _RESUMED - 6, _RESUMED - 5


def resumed_evidence(length: int, distance: int, agrees: bool) -> int:
    """The evidence of a copy that was found again, by the fields of its `Resumption`."""
    return _RESUMED + 6 * (length > 1) + 2 * min(distance, 2) + agrees


def in_place_evidence(replaced: int, agrees: bool) -> int:
    """The evidence of a copy that may continue after `replaced` tokens (1 or 2) were replaced."""
    return _IN_PLACE + 2 * (replaced - 1) + agrees


def rewrite_evidence(repeats: int, begun: bool) -> int:
    """The evidence of a rewrite; `begun`: its first new token was emitted."""
    return _REWRITE + (2 if begun else repeats > 0)


def bucket(evidence: int, position: int) -> int:
    """The bucket of a drafted token: by its evidence, and by position as in `DOUBT`."""
    # No `min` here: it would take longer than all the rest, and every drafted token comes here.
    bits = position.bit_length()
    return POSITIONS * evidence + (bits if bits < POSITIONS else POSITIONS - 1)


def doubt_row(evidence: int) -> int:
    """The row of `DOUBT` for evidence that is no rewrite."""
    if evidence < _MATCH:
        return 0
    if evidence < _RESUMED:
        return 2 if evidence - _RESUMED in (-6, -5, -2, -1) else 1
    return 3


class Expectations:
    """How likely a token of each bucket is to be accepted.

    A mixture of text classes. Every request begins with equal weights; its outcomes tell which
    classes are likely. What is learnt of the buckets is kept from request to request, for each
    class in proportion to its weight, so that edits do not teach what to expect of prose.
    """

    def __init__(self) -> None:
        self._values = [
            [_shifted(prior(evidence, position), shift) for shift in TEXT_CLASSES]
            for evidence in range(EVIDENCE)
            for position in range(POSITIONS)
        ]
        self._tried = [[PRIOR_WEIGHT] * len(TEXT_CLASSES) for _ in self._values]
        self.begin()

    def begin(self) -> None:
        """Starts a request: its text may be of any class."""
        self._weights: Sequence[float] = [1.0 / len(TEXT_CLASSES)] * len(TEXT_CLASSES)

    def of(self, bucket: int, bigram_affinity: int) -> float:
        """The probability that a token is accepted if those before it are."""
        # Written out for the four classes, because every drafted token needs it.
        none, few, many, most = self._weights
        in_none, in_few, in_many, in_most = self._values[bucket]
        chance = none * in_none + few * in_few + many * in_many + most * in_most
        odds = chance * AFFINITY_ODDS[bigram_affinity] if bucket < _FIRST_REWRITE_BUCKET else chance
        return odds / (1.0 - chance + odds)

    def learn(self, bucket: int, bigram_affinity: int, accepted: bool) -> None:
        """Learns from one outcome."""
        # Written out too, because every verified token comes here.
        factor = AFFINITY_ODDS[bigram_affinity] if bucket < _FIRST_REWRITE_BUCKET else 1.0
        values, tried = self._values[bucket], self._tried[bucket]
        none, few, many, most = values
        in_none, in_few, in_many, in_most = accept_probs = (
            none * factor / (1.0 - none + none * factor),
            few * factor / (1.0 - few + few * factor),
            many * factor / (1.0 - many + many * factor),
            most * factor / (1.0 - most + most * factor),
        )
        if not accepted:
            in_none, in_few, in_many, in_most = 1 - in_none, 1 - in_few, 1 - in_many, 1 - in_most
        none, few, many, most = self._weights
        none, few, many, most = none * in_none, few * in_few, many * in_many, most * in_most
        kept = (1.0 - CHANGE) / (none + few + many + most)
        self._weights = weights = (
            kept * none + _NEWCOMERS,
            kept * few + _NEWCOMERS,
            kept * many + _NEWCOMERS,
            kept * most + _NEWCOMERS,
        )
        for text_class, weight in enumerate(weights):
            if weight > _FAINT:
                total = tried[text_class] + weight
                error = accepted - accept_probs[text_class]
                value = values[text_class] + weight * error / total
                values[text_class] = _LEAST if value < _LEAST else value if value < _MOST else _MOST
                tried[text_class] = total if total < MEMORY else MEMORY


def prior(evidence: int, position: int) -> float:
    """What is expected before anything is learnt; `position` as in `DOUBT`."""
    first = FIRST[evidence]
    return (
        first
        if evidence >= _REWRITE
        else 1.0 - (1.0 - first) * DOUBT[doubt_row(evidence)][position]
    )


def _shifted(chance: float, shift: float) -> float:
    """A probability with its log-odds shifted."""
    odds = chance * math.exp(shift)
    return min(_MOST, odds / (1.0 - chance + odds))
