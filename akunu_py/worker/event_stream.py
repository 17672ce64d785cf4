"""EventStream: the events of one answer, handed from the thread that makes them to one that reads.

A thread reads them by iterating. An event loop sets a listener, and takes what has come whenever
that is called.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event as Flag
from types import TracebackType
from typing import Final, Self

from akunu_py.request import Event

_SIGNAL_INTERVAL_S: Final = 0.1


class EventStream:
    """The events of one answer, in order; read them once, on any one thread.

    The statistics of an event are running sums, and settled with the last event. Leaving the
    stream, as a context manager, cancels what is left of it.

    Attributes:
        ended: whether everything has been read.
        error: what broke the answer off, once everything has been read.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Event | _End] = SimpleQueue()
        self._cancelled = Flag()
        self.ended = False
        self.error: BaseException | None = None
        self._listener: Callable[[], object] | None = None
        self._told = False
        self._tells_end_only = False
        self._on_cancel: Callable[[], object] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the rest."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends the answer: at once if it has not begun, else after the chunk or round under way.

        The last event still comes, and its finish reason is CANCELLED. To be called by any thread,
        or a signal handler.
        """
        self._cancelled.set()
        if self._on_cancel is not None:
            self._on_cancel()

    def listen(self, listener: Callable[[], object], *, end_only: bool = False) -> None:
        """Has `listener` called once now, and whenever something has come after a `take`; with
        `end_only`, not before the end has.

        It is called on the thread that answers, so it must only pass on that there is something to
        take: `loop.call_soon_threadsafe(...)` say. Where it raises, a loop that is closed say, the
        answer is cancelled: nobody is there to read it.
        """
        self._tells_end_only = end_only
        self._listener = listener
        self._tell()

    def take(self) -> list[Event]:
        """The events that have come and were not read yet; never waits, never raises.

        Once `ended` is true there will be no more, and `error` tells why if they broke off.
        """
        self._told = self._tells_end_only  # first, so that what comes from now on is told of
        events: list[Event] = []
        while not (self.ended or self._queue.empty()):
            event = self._queue.get_nowait()
            if isinstance(event, _End):
                self.ended, self.error = True, event.error
            else:
                events.append(event)
        return events

    def put(self, event: Event) -> None:
        """Appends an event; for the thread that answers."""
        self._queue.put(event)
        self._tell()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the events, with an error if that is why; for the thread that answers."""
        self._queue.put(_End(error))
        if self._tells_end_only:
            self._told = False
        self._tell()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Has `callback` called by `cancel`; for whoever begins the answer."""
        self._on_cancel = callback

    def _tell(self) -> None:
        if self._listener is None or self._told:
            return
        self._told = True
        try:
            self._listener()
        except Exception:  # whatever it is, the thread that answers must go on
            self._listener = None
            self._cancelled.set()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self.ended:
            raise StopIteration
        event = self._next()
        if not isinstance(event, _End):
            return event
        self.ended, self.error = True, event.error
        if self.error is not None:
            raise self.error
        raise StopIteration

    def _next(self) -> "Event | _End":
        # A signal that arrives just before a wait, or on another thread, does not end that wait:
        # short ones let the main thread run its signal handlers.
        while True:
            try:
                return self._queue.get(timeout=_SIGNAL_INTERVAL_S)
            except Empty:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()


@dataclass(frozen=True)
class _End:
    error: BaseException | None
