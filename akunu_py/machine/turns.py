"""Turns: the engines of one process compute one after another, the most urgent request first.

Each engine has its own thread, and MLX computes one thing at a time on a device anyway. A thread
takes a turn for one step: a chunk of a prompt, or a round. Plain Python.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from threading import Condition, get_ident
from typing import Final

Rank = tuple[int, bool, int]
"""How urgent a step is; lower goes first. See `Sequence.rank`."""

_PATIENCE: Final = 8
"""A step that was passed over this many times comes first, as in the scheduler."""


@dataclass(eq=False)
class _Step:
    rank: Callable[[], Rank]
    arrival: int
    passed: int = 0
    is_next: bool = False

    @property
    def order(self) -> tuple[bool, Rank, int]:
        is_impatient = self.passed >= _PATIENCE
        return not is_impatient, (0, False, 0) if is_impatient else self.rank(), self.arrival


class Turns:
    """Whose turn it is. Any thread may take one; a thread that has one must not take another."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waiting: list[_Step] = []
        self._arrivals = count()
        self._taken = False
        self._returning: int | None = None  # the thread that had the turn and asks again

    @property
    def waiting(self) -> int:
        """How many threads wait for a turn."""
        return len(self._waiting)

    @property
    def contended(self) -> bool:
        """Whether any thread has a turn or waits for one."""
        return self._taken or bool(self._waiting)

    @contextmanager
    def turn(
        self, rank: Callable[[], Rank], goes_on: Callable[[], bool] = lambda: False
    ) -> Generator[None, None, None]:
        """Waits for the caller's turn, which ends with the block. At the end of a turn, the `rank`
        of each waiting step is read anew: more urgent requests may have come meanwhile.

        If the caller `goes_on`, it must ask for its next turn immediately. The next step is chosen
        only then, because the caller's own may be the most urgent."""
        step = _Step(rank, next(self._arrivals))
        with self._changed:
            if self._taken:
                self._waiting.append(step)
                if self._returning == get_ident():
                    self._hand_over()
                self._changed.wait_for(lambda: step.is_next)
            self._taken = True
        is_back = False
        try:
            yield
            is_back = goes_on()
        finally:
            with self._changed:
                if is_back:
                    self._returning = get_ident()
                else:
                    self._hand_over()

    def _hand_over(self) -> None:
        """Gives the turn to the next step. It is chosen here, once: if each thread checked for
        itself and ranks changed in between, none might find that it is next."""
        self._returning = None
        if not self._waiting:
            self._taken = False
            return
        chosen = min(self._waiting, key=lambda one: one.order)
        self._waiting.remove(chosen)
        for other in self._waiting:
            other.passed += 1
        chosen.is_next = True
        self._changed.notify_all()
