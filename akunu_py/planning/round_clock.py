"""RoundClock: what a round of decoding took, where its time says something about the device."""

from time import perf_counter
from typing import Final

_NO_WAIT: Final = 0.02
"""A round of which the loop waited for less than this share found the device already done."""

_SHORT_ERRAND: Final = 0.1
"""A caller that takes less than this share of a round does not falsify its time."""


class RoundClock:
    """Times rounds, from the end of one to the end of the next.

    A caller that takes longer over a round than the device over the next one makes that time
    useless; such a round has none.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._errand_s = 0.0

    def caller_took(self, seconds: float) -> None:
        """Books the time that the caller kept the loop waiting."""
        self._errand_s = seconds

    def lap(self, waited_s: float) -> float | None:
        """Ends a round; the seconds since the one before, if they tell what rounds take.

        Args:
            waited_s: the seconds of it that the loop waited for the device.
        """
        now, last = perf_counter(), self._last
        self._last, errand = now, self._errand_s
        if last is None:
            return None
        seconds = now - last
        device_was_slower = waited_s > _NO_WAIT * seconds
        return seconds if device_was_slower or errand < _SHORT_ERRAND * seconds else None
