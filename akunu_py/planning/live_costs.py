"""LiveCosts and RoundClock: a cost curve, corrected by how long rounds of real requests take.

`RoundClock` times rounds and leaves out those whose time says nothing about the device. `LiveCosts`
compares these times with a measured `CostCurve`. Neither knows tokens or models.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Final

from akunu_py.planning.cost_curve import CostCurve

_SHARED_RATE: Final = 0.1
_OWN_RATE: Final = 0.05
_CLIP: Final = math.log(1.6)
"""An observation counts as at most this far from its prediction: one outlier must not matter."""
_MAX_SHARED: Final = math.log(16)
_MAX_OWN: Final = math.log(3)

_RANGES: Final = 7
_CONTEXT_GRAIN: Final = 128
_CONTEXTS_KEPT: Final = 32

_NO_WAIT: Final = 0.02
"""If the loop waited for less than this fraction of a round, the device had already finished."""

_SHORT_CALLER: Final = 0.1
"""A caller that takes less than this fraction of a round does not distort its time."""


class LiveCosts:
    """The expected time of a single step and of a round, now.

    A busy or hot machine slows everything down; a curve that was measured at a bad moment is
    wrong at some sizes. So two corrections are learnt, both as running means of the logarithm of
    observed over predicted time: one that all costs share, and one for each range of sizes. A
    pipelined step has that of rounds over one token, because either may be all that is observed.

    Args:
        curve: the measured costs.
        longest: the most tokens a round may have.
    """

    def __init__(self, curve: CostCurve, longest: int) -> None:
        self._curve = curve
        self._longest = longest
        self._ranges = [_range_of(tokens) for tokens in range(1, longest + 1)]
        self._shared = 0.0
        self._own = [0.0] * _RANGES
        self._shared_factor = 1.0
        self._own_factors = [1.0] * _RANGES
        self._tables: dict[int, tuple[float, list[float]]] = {}

    def decode_s(self, context: int) -> float:
        """Seconds of a pipelined single step."""
        return self._table(context)[0] * self._own_factors[0] * self._shared_factor

    def verify_table(self, context: int, tokens: int) -> list[float]:
        """Seconds of rounds over 1, 2 ... `tokens` positions, at most `longest`."""
        shared, own = self._shared_factor, self._own_factors
        measured = self._table(context)[1][:tokens]
        return [
            cost * own[index] * shared for cost, index in zip(measured, self._ranges, strict=False)
        ]

    def observe_step(self, seconds: float, context: int) -> None:
        """Learns from the time of a pipelined single step."""
        self._learn(0, seconds, self._table(context)[0])

    def observe_round(self, tokens: int, seconds: float, context: int) -> None:
        """Learns from the time of a round; ignores rounds longer than `longest`."""
        if 1 <= tokens <= self._longest:
            self._learn(self._ranges[tokens - 1], seconds, self._table(context)[1][tokens - 1])

    def _table(self, context: int) -> tuple[float, list[float]]:
        grain = context // _CONTEXT_GRAIN
        if grain not in self._tables:
            if len(self._tables) >= _CONTEXTS_KEPT:
                self._tables.clear()
            middle = grain * _CONTEXT_GRAIN + _CONTEXT_GRAIN // 2
            curve = self._curve
            self._tables[grain] = curve.decode_s(middle), curve.verify_table(middle, self._longest)
        return self._tables[grain]

    def _learn(self, index: int, seconds: float, measured: float) -> None:
        if not 0.0 < seconds < math.inf:
            return
        surprise = math.log(seconds / measured) - self._shared - self._own[index]
        surprise = _clipped(surprise, _CLIP)
        self._shared = _clipped(self._shared + _SHARED_RATE * surprise, _MAX_SHARED)
        self._own[index] = _clipped(self._own[index] + _OWN_RATE * surprise, _MAX_OWN)
        self._shared_factor = math.exp(self._shared)
        self._own_factors[index] = math.exp(self._own[index])


def _range_of(tokens: int) -> int:
    """The range of a round: 1, 2, 3-4, 5-8, 9-16, 17-32 or more tokens."""
    return min((tokens - 1).bit_length(), _RANGES - 1)


def _clipped(value: float, bound: float) -> float:
    return value if -bound <= value <= bound else math.copysign(bound, value)


class RoundClock:
    """Times rounds, from the end of one to the end of the next.

    If the caller held up the loop for longer than the device needed for the next round, the time
    says nothing about the device, and the round has none.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._caller_s = 0.0

    def note_pause(self, seconds: float) -> None:
        """Notes how long the caller held up the loop after this round."""
        self._caller_s = seconds

    def lap(self, waited_s: float) -> float | None:
        """Ends a round; the seconds since the end of the round before, or None (see the class).

        Args:
            waited_s: how many seconds of the round the loop waited for the device.
        """
        now, last = perf_counter(), self._last
        self._last, caller_s = now, self._caller_s
        if last is None:
            return None
        seconds = now - last
        device_was_slower = waited_s > _NO_WAIT * seconds
        return seconds if device_was_slower or caller_s < _SHORT_CALLER * seconds else None
