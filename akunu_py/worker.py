"""EngineWorker: an engine on a thread of its own, used from other threads.

MLX arrays belong to the thread that made them. So one thread loads the engine and does everything
with it, in the order asked; others wait for results, or read events as they come. Knows neither
terminals nor HTTP.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeVar

from akunu_py.backend import release_thread
from akunu_py.options import Options

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.request import Event

THREAD_NAME: Final = "akunu-engine"

_SIGNAL_INTERVAL_S: Final = 0.1

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called on the worker's thread with the prompt tokens done and all that are to do."""


class EngineWorker:
    """Begins to load an engine at once, and then answers requests one after another.

    Args:
        load: makes the engine; runs on the worker's thread.

    Attributes:
        loading: the engine, or why there is none, once that is known. Of the engine only what
            never changes may be used from another thread: names, sizes, notices.
    """

    def __init__(self, load: "Callable[[], Engine]") -> None:
        self.loading: Future[Engine] = Future()
        self._load = load
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._closing = Flag()
        self._lock = Lock()
        self._thread = Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether there will be no engine."""
        return self.loading.done() and self.loading.exception() is not None

    def call(self, task: "Callable[[Engine], T]") -> T:
        """Runs a function of the engine on its thread and waits for what it returns.

        Raises:
            Exception: what the function raised, or what kept the engine from loading.
        """
        outcome: Future[T] = Future()

        def run(engine: "Engine") -> None:
            try:
                outcome.set_result(task(engine))
            except BaseException as error:
                outcome.set_exception(error)

        self._submit(_Task(run, outcome.set_exception))
        return outcome.result()

    def stream(
        self,
        prompt: str | Sequence[int],
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: Progress | None = None,
    ) -> "EventStream":
        """Answers a prompt; see `Engine.stream` for the arguments and the errors.

        Errors are raised by the iteration. Requests that came earlier are answered first.
        """
        events = EventStream()

        def cancelled() -> bool:
            return events.cancelled or self._closing.is_set()

        def run(engine: "Engine") -> None:
            try:
                for event in engine.stream(
                    prompt, options, suffix=suffix, progress=progress, cancelled=cancelled
                ):
                    events.put(event)
            except BaseException as error:
                events.end(error)
            else:
                events.end()

        self._submit(_Task(run, events.end))
        return events

    def close(self, timeout: float | None = None) -> bool:
        """Cancels what is under way and ends the thread.

        Args:
            timeout: seconds to wait for it; None waits for as long as it takes.

        Returns:
            Whether the thread has ended. One that is loading cannot be interrupted.
        """
        with self._lock:
            if not self._closing.is_set():
                self._closing.set()
                self._tasks.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _submit(self, task: "_Task") -> None:
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("The engine's thread has been closed.")
            self._tasks.put(task)

    def _work(self) -> None:
        self.loading.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        try:
            engine = self._load()
        except BaseException as error:
            self._fail_all(error)
        else:
            self.loading.set_result(engine)
            while (task := self._tasks.get()) is not None:
                task.run(engine)
        finally:
            release_thread()

    def _fail_all(self, error: BaseException) -> None:
        self.loading.set_exception(error)
        while (task := self._tasks.get()) is not None:
            task.fail(error)


class EventStream:
    """The events of one answer, in order; iterate over it once, on any one thread.

    The statistics of an event are running sums, and settled with the last event. Leaving the
    stream, as a context manager, cancels what is left of it.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Event | _End] = SimpleQueue()
        self._cancelled = Flag()
        self._ended = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the rest."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ends the answer after the round under way; the last event still comes."""
        self._cancelled.set()

    def put(self, event: "Event") -> None:
        """Appends an event; for the thread that answers."""
        self._queue.put(event)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the events, with an error if that is why; for the thread that answers."""
        self._queue.put(_End(error))

    def __iter__(self) -> "Iterator[Event]":
        return self

    def __next__(self) -> "Event":
        if self._ended:
            raise StopIteration
        event = self._next()
        if not isinstance(event, _End):
            return event
        self._ended = True
        if event.error is not None:
            raise event.error
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


@dataclass(frozen=True)
class _Task:
    """Work for the engine's thread, and whom to tell if there is no engine."""

    run: "Callable[[Engine], None]"
    fail: Callable[[BaseException], None]
