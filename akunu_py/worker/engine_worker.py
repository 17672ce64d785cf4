"""EngineWorker: an engine on a thread of its own, used from other threads or from an event loop.

MLX arrays belong to the thread that made them. So one thread loads the engine and does everything
with it, in the order asked; others wait for results, or read events as they come. Knows neither
terminals nor HTTP.
"""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar

from akunu_py.backend import release_thread
from akunu_py.errors import EngineClosedError
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.stats import Finish, Stats
from akunu_py.worker.event_stream import EventStream
from akunu_py.worker.task_queue import Task, TaskQueue

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.prompt import PromptInput

THREAD_NAME: Final = "akunu-engine"

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called on the worker's thread with the prompt tokens done and all that are to do."""


class EngineWorker:
    """Begins to load an engine at once, and then answers requests one after another.

    Args:
        load: makes the engine; runs on the worker's thread.
        queue_limit: how many requests and calls may wait; None for any number.

    Attributes:
        loading: the engine, or why there is none, once that is known. Of the engine only what
            never changes may be used from another thread, and what says that it may: names,
            sizes, notices, counters.
    """

    def __init__(self, load: "Callable[[], Engine]", *, queue_limit: int | None = None) -> None:
        self.loading: Future[Engine] = Future()
        self._load = load
        self._tasks: TaskQueue[Engine] = TaskQueue(queue_limit)
        self._closing = Flag()
        self._busy = False
        self._thread = Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether there will be no engine."""
        return self.loading.done() and self.loading.exception() is not None

    @property
    def busy(self) -> bool:
        """Whether a request or a call is under way; any thread may ask."""
        return self._busy

    @property
    def queue_depth(self) -> int:
        """How many requests and calls wait; any thread may ask."""
        return len(self._tasks)

    def call(self, task: "Callable[[Engine], T]") -> T:
        """Runs a function of the engine on its thread and waits for what it returns.

        Raises:
            Exception: what the function raised, or what kept the engine from loading.
            QueueFullError: if too many wait already.
        """
        return self.submit(task).result()

    def submit(self, task: "Callable[[Engine], T]") -> "Future[T]":
        """The same without waiting; one that is cancelled in time is not run.

        Raises:
            QueueFullError: if too many wait already.
        """
        outcome: Future[T] = Future()

        def run(engine: "Engine") -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                outcome.set_result(task(engine))
            except BaseException as error:
                outcome.set_exception(error)

        def abandon(reason: BaseException | None) -> None:
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(reason or EngineClosedError())

        self._tasks.put(Task(run, abandon))
        return outcome

    def stream(
        self,
        prompt: "PromptInput | Callable[[Engine], PromptInput]",
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: Progress | None = None,
    ) -> EventStream:
        """Answers a prompt; see `Engine.stream` for the arguments and the errors.

        A prompt may also be a function of the engine; the worker's thread calls it just before
        the request begins. Errors are raised by the iteration. Requests that came earlier are
        answered first; one that is cancelled while it waits leaves the queue and never reaches
        the engine.

        Raises:
            QueueFullError: if too many wait already.
        """
        events = EventStream()

        def cancelled() -> bool:
            return events.cancelled or self._closing.is_set()

        def run(engine: "Engine") -> None:
            if cancelled():
                abandon(None)
                return
            try:
                asked = prompt(engine) if callable(prompt) else prompt
                for event in engine.stream(
                    asked, options, suffix=suffix, progress=progress, cancelled=cancelled
                ):
                    events.put(event)
            except BaseException as error:
                events.end(error)
            else:
                events.end()

        def abandon(reason: BaseException | None) -> None:
            if reason is None or isinstance(reason, EngineClosedError):
                events.put(Event((), (), Stats(), Finish.CANCELLED))
                events.end()
            else:
                events.end(reason)

        task: Task[Engine] = Task(run, abandon)
        events.on_cancel(lambda: self._tasks.take_back(task))
        self._tasks.put(task)
        return events

    def close(self, timeout: float | None = None) -> bool:
        """Cancels what is under way, ends what waits, and ends the thread.

        A stream that waited ends as a cancelled one does, a call with an `EngineClosedError`.

        Args:
            timeout: seconds to wait for it; None waits for as long as it takes.

        Returns:
            Whether the thread has ended. One that is loading cannot be interrupted.
        """
        self._closing.set()
        self._tasks.close(EngineClosedError())
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        self.loading.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        try:
            engine = self._load()
        except BaseException as error:
            self.loading.set_exception(error)
            while (task := self._tasks.get()) is not None:
                task.abandon(error)
        else:
            self.loading.set_result(engine)
            while (task := self._tasks.get()) is not None:
                self._busy = True
                task.run(engine)
                self._busy = False
        finally:
            release_thread()
