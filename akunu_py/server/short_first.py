"""ShortFirst: which of the requests that take long to read is read next."""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from time import monotonic
from typing import Final, TypeVar

T = TypeVar("T")

_BYTES_PER_S: Final = 1 << 14
"""A body of this many bytes goes behind all that arrive within a second after it."""


class ShortFirst:
    """Runs one function at a time in a thread, those for the shortest bodies first. Otherwise many
    long bodies of one client would delay the usual ones of all others, and two threads would
    compete with the model's and the event loop's for the interpreter."""

    def __init__(self) -> None:
        self._is_running = False
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    def place(self, nbytes: int) -> float:
        """The place in line of a request that arrives now with a body of this many bytes; lower
        places come first."""
        return monotonic() + nbytes / _BYTES_PER_S

    async def run(self, place: float, task: Callable[[], T]) -> T:
        """What a function returns that is part of reading a request."""
        if self._is_running:
            turn = asyncio.get_running_loop().create_future()
            heappush(self._waiting, (place, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # it has just got its turn
                    self._hand_over()
                raise
        self._is_running = True
        try:
            return await asyncio.to_thread(task)
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting:
            turn = heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._is_running = False
