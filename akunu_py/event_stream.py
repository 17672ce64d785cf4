"""EventStream: the events of one request, handed from the engine's thread to one reader.

There is one queue. A thread reads it by iterating; an event loop reads it with `async for`, and is
woken once for every batch of events.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from akunu_py.request import Event

if TYPE_CHECKING:
    from akunu_py.answer import Answer
    from akunu_py.decoding.scheduler import Sequence

_SIGNAL_INTERVAL_S: Final = 0.1


def _nothing() -> None:
    """What `cancel` calls once there is nothing to cancel."""


class EventStream:
    """The events of one request, in order; `cancel` calls `on_cancel`.

    A thread reads them with `for`, an event loop with `async for`. Leaving the stream as a context
    manager cancels the rest of the request.

    Attributes:
        last: the newest event, read or not; any thread may look at it.
        finished: whether the engine is done with the request.
        cancelled: whether the rest is no longer wanted.
        sequence: what the scheduler knows of the request, and `answer` what the engine knows, once
            it has begun and until it ends; any thread may look at both.
    """

    def __init__(self, on_cancel: Callable[[], object] = _nothing) -> None:
        self.last: Event | None = None
        self.finished = False
        self.cancelled = False
        self.sequence: Sequence | None = None
        self.answer: Answer | None = None
        self._queue: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self._exhausted = False
        self._on_cancel = on_cancel
        self._aborted: BaseException | None = None
        self._wake: Callable[[], object] | None = None
        self._wake_pending = False
        self._end_only = False
        self._on_finish: Callable[[], object] | None = None
        self._reader: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Ends the request: immediately if it still waits, else after the current chunk or round.

        The last event still comes, with the finish reason CANCELLED. Any thread may call this, and
        so may a signal handler.
        """
        self.cancelled = True
        self._on_cancel()

    def abort(self, error: BaseException) -> None:
        """Cancels the request and raises `error` at the reader immediately; for the event loop."""
        self._aborted = error
        self._wake_reader()
        self.cancel()

    def attach(self, on_finish: Callable[[], object], *, end_only: bool = False) -> None:
        """Lets the running event loop read the events, as `async for` does by itself; calls
        `on_finish` on it when the engine is done, whether or not they have been read.

        With `end_only`, the event loop is woken only when the engine is done, not for every batch
        of events.
        """
        loop = asyncio.get_running_loop()
        self._on_finish, self._end_only = on_finish, end_only
        self._wake = partial(loop.call_soon_threadsafe, self._woken)
        self._notify()

    def put(self, event: Event) -> None:
        """Appends an event; for the engine's thread."""
        self.last = event
        self._queue.put(event)
        self._notify()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the events, with the error that caused it, if any; for the engine's thread."""
        self._queue.put(error)
        self.finished = True
        # They hold this stream, and so the prompt would live until the next garbage collection.
        self._on_cancel, self.sequence, self.answer = _nothing, None, None
        self._notify()

    def _notify(self) -> None:
        """Wakes the event loop, unless it is about to look anyway."""
        if self._wake is None or self._wake_pending or (self._end_only and not self.finished):
            return
        self._wake_pending = True
        try:
            self._wake()
        except Exception:  # the event loop is closed; the thread must continue
            self._wake = None
            self.cancelled = True

    def _woken(self) -> None:
        self._wake_pending = False  # first, so that events that come from now on wake again
        if self.finished:
            self._wake = None  # which holds this stream
            if self._on_finish is not None:
                on_finish, self._on_finish = self._on_finish, None
                on_finish()
        self._wake_reader()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def __aiter__(self) -> Self:
        if self._wake is None:
            self.attach(lambda: None)
        return self

    async def __anext__(self) -> Event:
        while not self._exhausted:
            if self._aborted is not None:
                raise self._aborted
            try:
                event = self._unpack(self._queue.get_nowait())
            except Empty:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
                continue
            if event is not None:
                return event
        raise StopAsyncIteration

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        # A signal that arrives just before a wait, or on another thread, does not end that wait.
        # Short waits let the main thread run its signal handlers.
        while not self._exhausted:
            try:
                event = self._unpack(self._queue.get(timeout=_SIGNAL_INTERVAL_S))
            except Empty:
                continue
            if event is not None:
                return event
        raise StopIteration

    def _unpack(self, entry: Event | BaseException | None) -> Event | None:
        """The event in an entry of the queue; None or an error is the end."""
        if isinstance(entry, Event):
            return entry
        self._exhausted = True
        try:
            if entry is not None:
                raise entry
        finally:
            del entry  # its traceback holds this frame, and so the request
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
