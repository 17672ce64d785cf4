"""The threads that compute: whose an engine is, threads to use again, and whose turn it is.

MLX arrays belong to the thread that made them, MLX keeps a thread for every thread that ever
computed, and a forked child has none of these, so its computations never end. Each engine has its
own thread, and MLX computes one thing at a time on a device anyway: so the engines of a process
compute one after another, the most urgent request first. A turn is one step: a chunk of a prompt,
or a round.
"""

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from threading import Condition, Event, Thread, get_ident
from threading import enumerate as enumerate_threads
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.machine.blas import load_blas


def check_process(process: int) -> None:
    """Raises an `InvalidRequestError` if this process has another id."""
    if os.getpid() != process:
        raise InvalidRequestError(
            "A model cannot be used in a forked child of the process that loaded one; start the "
            "child with `spawn`, and load the model there."
        )


class Owner:
    """The thread that creates it owns the engine."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._process = os.getpid()
        self._is_working = False

    def check(self) -> None:
        check_process(self._process)
        if get_ident() != self._thread:
            raise InvalidRequestError(
                "An engine can be used only on the thread that loaded it; for several threads, "
                "load it with an `EngineWorker`."
            )
        if self._is_working:
            raise InvalidRequestError(
                "The engine is computing, so functions that it calls, such as a drafter, cannot "
                "use it."
            )

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        """A context in which calls to the engine are refused."""
        before, self._is_working = self._is_working, True
        try:
            yield
        finally:
            self._is_working = before


_NAME: Final = "akunu-engine"

_Task = tuple[Callable[[], None], Event]
_idle: Final[list["SimpleQueue[_Task]"]] = []
os.register_at_fork(after_in_child=_idle.clear)


def start(work: Callable[[], None]) -> Event:
    """Calls a function on an idle thread or on a new one; the event is set when it is done."""
    done = Event()
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        Thread(target=_work, args=(tasks,), name=_NAME, daemon=True).start()
    tasks.put((work, done))
    return done


def is_computing() -> bool:
    """Whether any of these threads is busy."""
    return sum(thread.name == _NAME for thread in enumerate_threads()) > len(_idle)


def _work(tasks: "SimpleQueue[_Task]") -> None:
    while True:
        work, done = tasks.get()
        try:
            work()
        except BaseException:
            release_thread()
            raise
        else:
            rest_thread()
            del work  # it refers to an engine
            _idle.append(tasks)
        finally:
            done.set()


def rest_thread() -> None:
    """Waits for what this thread computes, and frees its memory."""
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        with suppress(RuntimeError):  # from a computation whose result was not read
            mx.synchronize()
        if (blas := load_blas()) is not None:
            blas.free_buffers()


def release_thread() -> None:
    """The same for a thread that is about to end; otherwise the process would abort then."""
    rest_thread()
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        mx.clear_streams()


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
