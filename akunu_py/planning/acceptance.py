"""Acceptance: how likely each token of a draft is to be accepted, learnt from earlier drafts.

A drafter's own estimates (as `auto` learns them in `drafting/expectation.py`) are only corrected by
how far off they were for its source. If a drafter has none, they are learnt here, by source, match
length and position. Declined drafts are learnt from as well. Knows no costs and no clocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.confidence import PRIOR, Rate

_SLOWEST_RATE: Final = 0.02
_MAX_MATCH_LENGTH: Final = 63
_LAST_POSITION: Final = 31
_MIN_PROB, _MAX_PROB = 0.001, 0.999


class AcceptanceModel:
    """What was learnt about each source of drafts; it outlives requests."""

    def __init__(self) -> None:
        self._sources: defaultdict[str, _Source] = defaultdict(_Source)

    def accept_probs(self, draft: Draft) -> list[float]:
        """For each token, the probability that it is accepted if those before it are."""
        source = self._sources[draft.source]
        if len(draft.accept_probs) == len(draft.tokens):
            return [source.bias.corrected(_within(prob)) for prob in draft.accept_probs]
        match = _match_class(draft.match_length)
        known: dict[int, float] = {}
        accept_probs = []
        for index in range(len(draft)):
            position = _position_class(index)
            if position not in known:
                known[position] = source.accept_prob(match, position)
            accept_probs.append(known[position])
        return accept_probs

    def learn(self, draft: Draft, accepted: int) -> None:
        """Learns from a verified draft; nothing is known of the tokens after the first miss.

        Args:
            draft: the verified tokens.
            accepted: how many of them were accepted.
        """
        for position in range(min(accepted + 1, len(draft))):
            self.learn_token(draft, position, accepted=position < accepted)

    def learn_token(self, draft: Draft, position: int, *, accepted: bool) -> None:
        """Learns from one token of a draft whose earlier tokens were accepted."""
        source = self._sources[draft.source]
        if len(draft.accept_probs) == len(draft.tokens):
            source.bias.add(_within(draft.accept_probs[position]), accepted)
        else:
            source.add(_match_class(draft.match_length), _position_class(position), accepted)


class DeclinedDraft:
    """Compares a declined draft with what is emitted instead, up to the first miss.

    So a planner that verifies nothing still learns whether it should. Sampled drafts are left out:
    two draws from one distribution seldom agree, but verification accepts the drafted one.

    Args:
        acceptance: learns from the draft's tokens.
    """

    def __init__(self, acceptance: AcceptanceModel) -> None:
        self._acceptance = acceptance
        self.begin()

    def begin(self) -> None:
        """Starts a request: there is no declined draft."""
        self._draft, self._accepted = NO_DRAFT, 0

    def decline(self, draft: Draft) -> None:
        """Notes a declined draft, unless it was sampled or an earlier one is being compared."""
        if not self._draft and draft.probabilities is None:
            self._draft, self._accepted = draft, 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Compares the draft with the tokens that were emitted next."""
        draft = self._draft
        if not draft.tokens:
            return
        for token, drafted in zip(tokens, draft.tokens[self._accepted :], strict=False):
            self._acceptance.learn_token(draft, self._accepted, accepted=token == drafted)
            self._accepted += 1
            if token != drafted or self._accepted == len(draft.tokens):
                self.begin()
                return


class _Bias:
    """How far off a source's own estimates are, as a shift of their log-odds.

    Stochastic gradient ascent on the likelihood of the outcomes: fast at first, then slower, but
    never too slow to follow a change.
    """

    __slots__ = ("_factor", "_outcomes", "_shift")

    def __init__(self) -> None:
        self._shift = 0.0
        self._factor = 1.0
        self._outcomes = 0

    def add(self, expected: float, accepted: bool) -> None:
        rate = max(_SLOWEST_RATE, 4.0 / (8 + self._outcomes))
        self._outcomes += 1
        self._shift += rate * (accepted - self.corrected(expected))
        self._factor = math.exp(self._shift)

    def corrected(self, expected: float) -> float:
        odds = expected * self._factor
        return odds / (1.0 - expected + odds)


class _Source:
    """One source: its bias, and its rates, each close to the coarser one at first."""

    def __init__(self) -> None:
        self.bias = _Bias()
        self._whole = Rate()
        self._matches: defaultdict[int, Rate] = defaultdict(Rate)
        self._positions: defaultdict[tuple[int, int], Rate] = defaultdict(Rate)

    def accept_prob(self, match: int, position: int) -> float:
        by_match = self._matches[match].value(self._whole.value(PRIOR))
        return _within(self._positions[match, position].value(by_match))

    def add(self, match: int, position: int, accepted: bool) -> None:
        for rate in (self._whole, self._matches[match], self._positions[match, position]):
            rate.add(accepted)


def _match_class(length: int) -> int:
    """0, 1, 2-3, 4-7 ... 32 and more."""
    return max(0, min(length, _MAX_MATCH_LENGTH)).bit_length()


def _position_class(position: int) -> int:
    """0, 1, 2-3, 4-7, 8-15, 16 and more."""
    return min(position, _LAST_POSITION).bit_length()


def _within(prob: float) -> float:
    """A probability that is neither 0 nor 1; NaN counts as the prior."""
    if _MIN_PROB <= prob <= _MAX_PROB:
        return prob
    return PRIOR if math.isnan(prob) else max(_MIN_PROB, min(_MAX_PROB, prob))
