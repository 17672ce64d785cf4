"""DrawnAcceptance: how likely a draft model's tokens are to be accepted, learnt from its drafts.

A drawn token is judged by its confidence, the probability that the draft model itself gave it. A
token that is not drawn yet is judged by its position among the drawn ones. Knows no tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

PRIOR: Final = 0.6
"""The acceptance probability if nothing is known: enough to be tried on a good machine."""

_PRIOR_WEIGHT: Final = 4.0
_MEMORY: Final = 64.0
_CONFIDENCES: Final = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98, 0.995)
_POSITIONS: Final = 6


class Rate:
    """The rate of acceptance of one kind of tokens; old outcomes fade."""

    __slots__ = ("accepted", "tried")

    def __init__(self) -> None:
        self.accepted = self.tried = 0.0

    def add(self, accepted: bool) -> None:
        """Counts an outcome."""
        if self.tried >= _MEMORY:
            self.fade()
        self.accepted += accepted
        self.tried += 1

    def fade(self, factor: float = 0.5) -> None:
        """Makes what is known count less."""
        self.accepted *= factor
        self.tried *= factor

    def value(self, prior: float) -> float:
        """The rate, close to the prior at first."""
        return (self.accepted + _PRIOR_WEIGHT * prior) / (self.tried + _PRIOR_WEIGHT)


class DrawnAcceptance:
    """What was learnt of a draft model; it outlives requests."""

    def __init__(self) -> None:
        self._by_confidence = [Rate() for _ in range(len(_CONFIDENCES) + 1)]
        self._by_position = [Rate() for _ in range(_POSITIONS)]

    def begin(self) -> None:
        """Starts a request, whose text may be another kind of text: the model is tried again."""
        for rate in self._by_position:
            rate.fade(0.9)

    def of(self, confidence: float) -> float:
        """The probability that a token is accepted that was drawn with this confidence."""
        return self._by_confidence[bisect_left(_CONFIDENCES, confidence)].value(confidence)

    def ahead(self, drawn: int, count: int) -> list[float]:
        """The same for the next `count` tokens after `drawn` ones of the same draft."""
        values = []
        value = PRIOR
        for rate in self._by_position:
            value = rate.value(value)  # what was seldom tried is as good as the one before it
            values.append(value)
        return [values[_position_class(drawn + index)] for index in range(count)]

    def learn(self, position: int, confidence: float, accepted: bool) -> None:
        """Learns from a token whose draft was right before it."""
        self._by_confidence[bisect_left(_CONFIDENCES, confidence)].add(accepted)
        self._by_position[_position_class(position)].add(accepted)


def _position_class(position: int) -> int:
    """0, 1, 2-3, 4-7, 8-15, 16 and more."""
    return min(position.bit_length(), _POSITIONS - 1)
