"""Expectations: how likely a drafted token is to be accepted, learnt while a request runs.

A guess is filed under its grade (which source it comes from and how strong the evidence is) and
its position in the draft. Every file starts from a prior, read off a replay over real edits, and
moves with each outcome. What holds for a file depends on the text, so every sort of text has
values of its own. How firmly the text so far binds the guess to the token before it comes on top.
Knows no tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.occurrences import Consensus

POSITIONS: Final = 6
PRIOR_WEIGHT: Final = 4.0
MEMORY: Final = 64.0
"""Outcomes that a value is the mean of, at most: older ones fade."""

TEXT_CLASSES: Final = (-1.0, 0.0, 1.0, 2.0)
"""The sorts of text: how far the log-odds of each are from the priors before anything is learnt,
from prose, where nothing holds, to a copy that hardly ever breaks."""

CHANGE: Final = 0.005
"""The chance that a text turns into one of another sort with the next outcome."""

_NEWCOMERS: Final = CHANGE / len(TEXT_CLASSES)
_FAINT: Final = 0.03
"""A sort less likely than this learns nothing from an outcome."""
_LEAST, _MOST = 0.002, 0.998

_COPY_RUNS: Final = (0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 4, 5)
_MATCH_LENGTHS: Final = (0, 0, 1, 2, 3, 3, 4, 4, 4, 5)

_COPY: Final = 0
_MATCH: Final = _COPY + 12
_RESUMED: Final = _MATCH + 24
_IN_PLACE: Final = _RESUMED + 24
_REWRITE: Final = _IN_PLACE + 4
GRADES: Final = _REWRITE + 6
_FIRST_REWRITE_BUCKET: Final = POSITIONS * _REWRITE

# How likely the first token of a draft is to stand, for each grade, and for each source the share
# of that doubt that is left at each class of positions. Read off the even-numbered requests of
# `benchmarks/replay_drafters.py` under two tokenizers.
_FIRST: Final = (
    # copy: runs of 1-4, 5, 6-8, 9-11, 12-16, 17 and more; best match says otherwise, the same
    *(0.45, 0.50, 0.47, 0.62, 0.50, 0.59, 0.54, 0.66, 0.80, 0.87, 0.85, 0.96),
    # match: lengths of 1, 2, 3, 4-5, 6-8, 9 and more; all, the only one, half, fewer agree
    *(0.31, 0.24, 0.28, 0.13),
    *(0.58, 0.44, 0.26, 0.14),
    *(0.65, 0.62, 0.28, 0.25),
    *(0.74, 0.57, 0.24, 0.14),
    *(0.86, 0.73, 0.29, 0.14),
    *(0.90, 0.94, 0.36, 0.14),
    # resumed: lengths of 1, 2, 3 and more; in place, within 3, within 12, farther; as in copy
    *(0.43, 0.43, 0.31, 0.44, 0.05, 0.29, 0.10, 0.22),
    *(0.42, 0.60, 0.31, 0.59, 0.18, 0.49, 0.09, 0.34),
    *(0.47, 0.66, 0.37, 0.63, 0.19, 0.61, 0.09, 0.27),
    # in place: 1 and 2 tokens replaced; as in copy
    *(0.24, 0.68, 0.04, 0.70),
    # rewrite: repeated 0, 1, 2 and more times; not begun, begun
    *(0.68, 0.98, 0.91, 0.97, 0.92, 0.98),
)
_DOUBT: Final = (
    (1.0, 0.68, 0.59, 0.53, 0.41, 0.33),  # copy
    (1.0, 0.71, 0.53, 0.36, 0.22, 0.14),  # match, all or the only one agree
    (1.0, 0.91, 0.88, 0.85, 0.75, 0.63),  # match, half or fewer agree
    (1.0, 0.61, 0.34, 0.18, 0.13, 0.07),  # resumed
    (1.0, 0.56, 0.14, 0.12, 0.12, 0.10),  # in place
)
# The most that a later token is ever taken to be worth: edits come at a rate of their own.
_STEADY: Final = (0.966, 0.971, 0.965, 0.931, 0.895)
# What a token's bigram affinity (`bigram_affinity_of`) does to its odds: rows by how often another
# followed, columns by how often the same did. A rewrite breaks with what followed so far, and is
# exempt.
_AFFINITY_ODDS: Final = (
    *(1.4, 3.4, 6.0),
    *(0.6, 1.3, 1.8),
    *(0.8, 1.1, 1.3),
    *(0.6, 0.65, 0.8),
)


def copy_grade(run: int, agrees: bool) -> int:
    """The grade of a copy of `run` tokens so far; `agrees`: the best match says the same."""
    return _COPY + 2 * _COPY_RUNS[min(run, 17)] + agrees


def match_grade(length: int, agreed: Consensus) -> int:
    """The grade of what followed earlier occurrences of the last `length` tokens."""
    return _MATCH + 4 * _MATCH_LENGTHS[min(length, 9)] + agreed


def resumed_grade(length: int, nearness: int, agrees: bool) -> int:
    """The grade of a copy found again, `length` tokens of it, `nearness` from where it broke."""
    return _RESUMED + 8 * (min(length, 3) - 1) + 2 * nearness + agrees


def in_place_grade(replaced: int, agrees: bool) -> int:
    """The grade of a copy taken to go on after `replaced` tokens (1 or 2) were replaced."""
    return _IN_PLACE + 2 * (replaced - 1) + agrees


def rewrite_grade(repeats: int, begun: bool) -> int:
    """The grade of a rewrite made again `repeats` times; `begun`: its first token has come."""
    return _REWRITE + 2 * min(repeats, 2) + begun


def bucket(grade: int, position: int) -> int:
    """The file of a guess: its grade, and position 0, 1, 2-3, 4-7, 8-15 or later in the draft."""
    # No `min` here: it takes longer than all else, and every drafted token is filed.
    bits = position.bit_length()
    return POSITIONS * grade + (bits if bits < POSITIONS else POSITIONS - 1)


class Expectations:
    """The acceptance to be expected of every file.

    A mixture: how likely the text is to be of each sort is inferred from the outcomes of the
    request, and begins even with every request. What holds for texts of a sort is learnt in
    proportion, and kept from request to request; so edits do not teach what to expect of prose.
    """

    def __init__(self) -> None:
        self._values = [
            [_shifted(_prior(grade, position), sort) for sort in TEXT_CLASSES]
            for grade in range(GRADES)
            for position in range(POSITIONS)
        ]
        self._tried = [[PRIOR_WEIGHT] * len(TEXT_CLASSES) for _ in self._values]
        self.begin()

    def begin(self) -> None:
        """Starts a request: its text may be of any sort."""
        self._shares: Sequence[float] = [1.0 / len(TEXT_CLASSES)] * len(TEXT_CLASSES)

    def of(self, file: int, bigram_affinity: int) -> float:
        """The probability that a token filed there is accepted, if those before it were."""
        # Written out, for it is asked for every drafted token.
        none, few, many, most = self._shares
        in_none, in_few, in_many, in_most = self._values[file]
        chance = none * in_none + few * in_few + many * in_many + most * in_most
        odds = chance * _AFFINITY_ODDS[bigram_affinity] if file < _FIRST_REWRITE_BUCKET else chance
        return odds / (1.0 - chance + odds)

    def learn(self, file: int, bigram_affinity: int, accepted: bool) -> None:
        """Takes in one outcome."""
        # Written out as well, for it is done for every verified token.
        factor = _AFFINITY_ODDS[bigram_affinity] if file < _FIRST_REWRITE_BUCKET else 1.0
        values, tried = self._values[file], self._tried[file]
        none, few, many, most = values
        in_none, in_few, in_many, in_most = accept_probs = (
            none * factor / (1.0 - none + none * factor),
            few * factor / (1.0 - few + few * factor),
            many * factor / (1.0 - many + many * factor),
            most * factor / (1.0 - most + most * factor),
        )
        if not accepted:
            in_none, in_few, in_many, in_most = 1 - in_none, 1 - in_few, 1 - in_many, 1 - in_most
        none, few, many, most = self._shares
        none, few, many, most = none * in_none, few * in_few, many * in_many, most * in_most
        kept = (1.0 - CHANGE) / (none + few + many + most)
        self._shares = shares = (
            kept * none + _NEWCOMERS,
            kept * few + _NEWCOMERS,
            kept * many + _NEWCOMERS,
            kept * most + _NEWCOMERS,
        )
        for sort, share in enumerate(shares):
            if share > _FAINT:
                weight = tried[sort] + share
                value = values[sort] + share * (accepted - accept_probs[sort]) / weight
                values[sort] = _LEAST if value < _LEAST else value if value < _MOST else _MOST
                tried[sort] = weight if weight < MEMORY else MEMORY


def _shifted(chance: float, by: float) -> float:
    """A probability, its log-odds moved."""
    odds = chance * math.exp(by)
    return min(_MOST, odds / (1.0 - chance + odds))


def _prior(grade: int, position: int) -> float:
    first = _FIRST[grade]
    if grade >= _REWRITE:
        return first
    row = _doubt_row(grade)
    return max(first, min(_STEADY[row], 1.0 - (1.0 - first) * _DOUBT[row][position]))


def _doubt_row(grade: int) -> int:
    if grade < _MATCH:
        return 0
    if grade < _RESUMED:
        return 1 + ((grade - _MATCH) % 4 >= Consensus.HALF)
    return 3 + (grade >= _IN_PLACE)
