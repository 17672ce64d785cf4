"""EngineWorker: an engine on a thread of its own, used from other threads or from an event loop.

MLX arrays belong to the thread that made them. So one thread loads the engine and does everything
with it, in the order of the requests; other threads wait for results, or read events as they come.
This module knows neither terminals nor HTTP.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread
from typing import TYPE_CHECKING, Final, TypeVar

from akunu_py.backend import release_thread
from akunu_py.errors import EngineClosedError, QueueFullError
from akunu_py.event_stream import EventStream
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.stats import Finish, Round, Stats

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.prompt import PromptInput

__all__ = ["THREAD_NAME", "EngineWorker", "EventStream", "Progress"]

THREAD_NAME: Final = "akunu-engine"

_IDLE_S: Final = 2.0
"""After so long without a request, costs are measured and prompts saved, a file at a time."""

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called on the worker's thread with the number of prompt tokens done and of all to do."""


@dataclass(frozen=True, eq=False)
class _Task:
    """Work for the thread. Neither function may raise.

    Attributes:
        run: does the work.
        abandon: called instead if the work will not be done, with the error that prevents it, or
            with None if the task was taken back.
    """

    run: "Callable[[Engine], None]"
    abandon: Callable[[BaseException | None], None]


class EngineWorker:
    """Starts loading an engine immediately, and then serves requests one after another.

    Args:
        load: makes the engine; runs on the worker's thread.
        queue_limit: how many requests and calls may wait; None for any number.

    Attributes:
        loading: the engine, or the error that prevents it. Other threads may use only those parts
            of the engine that never change or that say so: names, sizes, notices, counters.
    """

    def __init__(self, load: "Callable[[], Engine]", *, queue_limit: int | None = None) -> None:
        self.loading: Future[Engine] = Future()
        self._load = load
        self._limit = queue_limit
        self._waiting: deque[_Task] = deque()
        self._changed = Condition()  # reentrant: a signal handler may interrupt `_put`, and call it
        self._closed = False
        self._busy = False
        self._saving = False
        self._thread = Thread(target=self._work, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def failed(self) -> bool:
        """Whether the engine could not be loaded."""
        return self.loading.done() and self.loading.exception() is not None

    @property
    def busy(self) -> bool:
        """Whether a request or a call is being worked on; any thread may ask."""
        return self._busy

    @property
    def queue_depth(self) -> int:
        """How many requests and calls wait; any thread may ask."""
        return len(self._waiting)

    def call(self, task: "Callable[[Engine], T]") -> T:
        """Runs a function of the engine on its thread and waits for its result.

        Raises:
            Exception: what the function raised, or why the engine could not be loaded.
            QueueFullError: if the queue is full.
        """
        return self.submit(task).result()

    def submit(self, task: "Callable[[Engine], T]") -> "Future[T]":
        """The same without waiting. If the future is cancelled in time, the function does not run.

        Raises:
            QueueFullError: if the queue is full.
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

        self._put(_Task(run, abandon))
        return outcome

    def stream(
        self,
        prompt: "PromptInput | Callable[[Engine], PromptInput]",
        options: Options | None = None,
        *,
        suffix: str | None = None,
        progress: Progress | None = None,
    ) -> EventStream:
        """Completes a prompt; see `Engine.stream` for the arguments and the errors.

        `prompt` may be a function that makes the prompt: it runs on the worker's thread just
        before the request begins. Errors are raised by the iteration. Earlier requests come first;
        a request that is cancelled while it waits leaves the queue and never reaches the engine.

        Raises:
            QueueFullError: if the queue is full.
        """
        events = EventStream(lambda: self._take_back(task))

        def cancelled() -> bool:
            return events.cancelled or self._closed

        def run(engine: "Engine") -> None:
            if cancelled():
                abandon(None)
                return
            try:
                for event in engine.stream(
                    prompt(engine) if callable(prompt) else prompt,
                    options,
                    suffix=suffix,
                    progress=progress,
                    cancelled=cancelled,
                ):
                    events.put(event)
            except BaseException as error:
                events.end(error)
            else:
                events.end()

        def abandon(reason: BaseException | None) -> None:
            if reason is None or isinstance(reason, EngineClosedError):
                events.put(Event(Round(finish=Finish.CANCELLED), (), Stats()))
                events.end()
            else:
                events.end(reason)

        task = _Task(run, abandon)
        self._put(task)
        return events

    def close(self, timeout: float | None = None) -> bool:
        """Cancels the current request, ends those that wait, and ends the thread.

        A stream that waits ends as a cancelled one does, a call with an `EngineClosedError`.

        Waits `timeout` seconds for the thread, or without limit, and returns whether it has ended.
        Loading cannot be interrupted; saving prompts is waited for.
        """
        with self._changed:
            self._closed = True
            abandoned = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for task in abandoned:
            task.abandon(EngineClosedError())
        self._thread.join(timeout)
        if self._saving:
            self._thread.join()
        return not self._thread.is_alive()

    def _put(self, task: _Task) -> None:
        with self._changed:
            if self._closed:
                raise EngineClosedError
            if self._limit is not None and len(self._waiting) >= self._limit:
                raise QueueFullError
            self._waiting.append(task)
            self._changed.notify()

    def _take_back(self, task: _Task) -> None:
        """Abandons a task if it still waits."""
        with self._changed:
            if task not in self._waiting:
                return
            self._waiting.remove(task)
        task.abandon(None)

    def _next(self, save: Callable[[], bool] = lambda: False) -> _Task | None:
        """Waits for the next task and removes it; None once the worker is closed.

        If none comes for a while, calls `save` until that returns False.
        """
        patience: float | None = _IDLE_S
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting or self._closed, patience):
                    return None if self._closed else self._waiting.popleft()
            patience = 0 if save() else None

    def _use_idle_time(self, engine: "Engine") -> bool:
        """Does what no request should wait for; False if there is no more."""
        engine.measure_costs(lambda: bool(self._waiting) or self._closed)
        return engine.save_prompts()

    def _work(self) -> None:
        self.loading.set_running_or_notify_cancel()  # from now on no waiter can cancel it
        try:
            engine = self._load()
        except BaseException as error:
            self.loading.set_exception(error)
            while (task := self._next()) is not None:
                task.abandon(error)
        else:
            self.loading.set_result(engine)
            while (task := self._next(lambda: self._use_idle_time(engine))) is not None:
                self._busy = True
                task.run(engine)
                self._busy = False
            self._saving = True
            engine.save_prompts(closing=True)
        finally:
            release_thread()
