"""AcceptanceRates: how likely drafted tokens are to be accepted, learnt from earlier outcomes.

There is a rate for each kind of evidence. It starts from a prior, moves with every outcome, and
forgets old outcomes. It knows no tokens: drafters and planners say what evidence a token has.
"""

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from akunu_py.drafting.base import Draft

PRIOR: Final = 0.6
"""The rate of an unknown kind: high enough to be tried on a fast machine."""

PRIOR_WEIGHT: Final = 4.0
"""A prior counts as much as this many outcomes."""

MEMORY: Final = 64.0
"""A rate is the mean of at most this many outcomes, so that older ones fade."""

_MIN_PROB, _MAX_PROB = 0.002, 0.998
_MAX_MATCH_LENGTH: Final = 63


class AcceptanceRates:
    """What was learnt about acceptance; it outlives requests, which may share it.

    The rates of kinds that are not among `priors` start at `PRIOR`.
    """

    def __init__(self, priors: Mapping[Hashable, float] = MappingProxyType({})) -> None:
        self._rates = dict(priors)
        self._outcomes: dict[Hashable, float] = {}

    def of(self, kind: Hashable, odds: float = 1.0) -> float:
        """The probability that a token with this kind of evidence is accepted if those before it
        are. Other evidence multiplies its odds."""
        prob = self._rates.get(kind, PRIOR)
        odds *= prob
        return odds / (1.0 - prob + odds)

    def knows(self, kind: Hashable) -> bool:
        """Whether there has been an outcome of this kind."""
        return kind in self._outcomes

    def learn(self, kind: Hashable, accepted: bool, odds: float = 1.0) -> None:
        """Learns from the outcome of a token whose predecessors in the draft were all right."""
        outcomes = self._outcomes.get(kind, PRIOR_WEIGHT) + 1.0
        rate = self._rates.get(kind, PRIOR) + (accepted - self.of(kind, odds)) / outcomes
        self._rates[kind] = max(_MIN_PROB, min(_MAX_PROB, rate))
        self._outcomes[kind] = min(outcomes, MEMORY)

    def accept_probs(self, draft: Draft) -> Sequence[float]:
        """The probability for each token of a draft; the drafter's own estimates, if it has any."""
        if len(draft.accept_probs) == len(draft):
            return [
                prob if _MIN_PROB <= prob <= _MAX_PROB else _within(prob)
                for prob in draft.accept_probs
            ]
        return [self.of(_kind(draft))] * len(draft)

    def learn_draft(self, draft: Draft, accepted: int) -> None:
        """Learns how many tokens were accepted, unless the drafter has estimates of its own."""
        if len(draft.accept_probs) != len(draft):
            for position in range(min(accepted + 1, len(draft))):
                self.learn(_kind(draft), position < accepted)


def _kind(draft: Draft) -> Hashable:
    """The source, and the match length: 0, 1, 2-3, 4-7 ... 32 and more."""
    return draft.source, max(0, min(draft.match_length, _MAX_MATCH_LENGTH)).bit_length()


def _within(prob: float) -> float:
    """A probability that is neither 0 nor 1; NaN counts as the prior."""
    return max(_MIN_PROB, min(_MAX_PROB, prob)) if prob == prob else PRIOR  # noqa: PLR0124
