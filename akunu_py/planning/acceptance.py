"""Acceptance: how likely each token of a draft is to stand, learnt from those that were tried.

A drafter's own expectations are taken as they are but for one correction: how the odds of its
source have turned out against what it expected, of first tokens and of those after them. Where a
drafter has none, an estimate is learnt by source, match length and position. Knows no tokens, costs
or clocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import chain, repeat
from typing import Final

from akunu_py.drafting.base import Draft

PRIOR: Final = 0.6
"""The chance of a draft's token where nothing is known: enough to be tried on a good machine."""

_PRIOR_WEIGHT: Final = 4.0
_MEMORY: Final = 64.0
_SLOWEST_RATE: Final = 0.02
_LARGEST_SHIFT: Final = 6.0
_LONGEST_MATCH: Final = 63
_LAST_POSITION: Final = 31
_LEAST, _MOST = 0.001, 0.999


class AcceptanceModel:
    """What is known of every source; it outlives requests."""

    def __init__(self) -> None:
        self._sources: defaultdict[str, _Source] = defaultdict(_Source)

    def accept_probs(self, draft: Draft) -> list[float]:
        """For each token the probability that it stands if those before it did."""
        source = self._sources[draft.source]
        if len(draft.accept_probs) == len(draft.tokens):
            biases = chain((source.first,), repeat(source.later))
            pairs = zip(draft.accept_probs, biases, strict=False)
            return [bias.corrected(_within(chance)) for chance, bias in pairs]
        match = _match_file(draft.match_length)
        known: dict[int, float] = {}
        accept_probs = []
        for position in range(len(draft)):
            file = _position_file(position)
            if file not in known:
                known[file] = source.chance(match, file)
            accept_probs.append(known[file])
        return accept_probs

    def learn(self, draft: Draft, accepted: int) -> None:
        """Takes in how many of a draft's tokens stood; what came after the first miss is unknown.

        Args:
            draft: the tokens that were tried, and no more than these.
            accepted: how many stood.
        """
        for position in range(min(accepted + 1, len(draft))):
            self.learn_token(draft, position, stood=position < accepted)

    def learn_token(self, draft: Draft, position: int, *, stood: bool) -> None:
        """Takes in the outcome of one token of a draft, those before it having stood."""
        source = self._sources[draft.source]
        if len(draft.accept_probs) == len(draft.tokens):
            bias = source.later if position else source.first
            bias.add(_within(draft.accept_probs[position]), stood)
        else:
            source.add(_match_file(draft.match_length), _position_file(position), stood)


class _Record:
    """Outcomes of one kind; old ones fade."""

    __slots__ = ("stood", "tried")

    def __init__(self) -> None:
        self.stood = self.tried = 0.0

    def add(self, stood: bool) -> None:
        if self.tried >= _MEMORY:
            self.stood /= 2
            self.tried /= 2
        self.stood += stood
        self.tried += 1

    def rate(self, prior: float) -> float:
        return (self.stood + _PRIOR_WEIGHT * prior) / (self.tried + _PRIOR_WEIGHT)


class _Bias:
    """How far a source's expectations are off, as a shift of their log-odds.

    Stochastic gradient ascent on the likelihood of the outcomes: quick at first, then slower, and
    never so slow that it could not follow a change.
    """

    __slots__ = ("_factor", "_outcomes", "_shift")

    def __init__(self) -> None:
        self._shift = 0.0
        self._factor = 1.0
        self._outcomes = 0

    def add(self, expected: float, stood: bool) -> None:
        rate = max(_SLOWEST_RATE, 4.0 / (8 + self._outcomes))
        self._outcomes += 1
        shift = self._shift + rate * (stood - self.corrected(expected))
        self._shift = max(-_LARGEST_SHIFT, min(_LARGEST_SHIFT, shift))
        self._factor = math.exp(self._shift)

    def corrected(self, expected: float) -> float:
        odds = expected * self._factor
        return odds / (1.0 - expected + odds)


class _Source:
    """One source: its records, each leaning on the coarser one while it is young."""

    def __init__(self) -> None:
        self.first, self.later = _Bias(), _Bias()
        self._whole = _Record()
        self._matches: defaultdict[int, _Record] = defaultdict(_Record)
        self._files: defaultdict[tuple[int, int], _Record] = defaultdict(_Record)

    def chance(self, match: int, position: int) -> float:
        whole = self._whole.rate(PRIOR)
        by_match = self._matches[match].rate(whole)
        return _within(self._files[match, position].rate(by_match))

    def add(self, match: int, position: int, stood: bool) -> None:
        for record in (self._whole, self._matches[match], self._files[match, position]):
            record.add(stood)


def _match_file(length: int) -> int:
    """0, 1, 2-3, 4-7 ... 32 and more."""
    return max(0, min(length, _LONGEST_MATCH)).bit_length()


def _position_file(position: int) -> int:
    """0, 1, 2-3, 4-7, 8-15, 16 and more."""
    return min(position, _LAST_POSITION).bit_length()


def _within(chance: float) -> float:
    """A probability that leaves room for surprise; what is no number counts as the prior."""
    if _LEAST <= chance <= _MOST:
        return chance
    return PRIOR if math.isnan(chance) else max(_LEAST, min(_MOST, chance))
