"""EngineWorker: an engine on a thread of its own, used from other threads or from an event loop.

MLX arrays belong to the thread that made them. So one thread loads the engine and does everything
with it; other threads wait for results, or read events as they come. Several requests may be
answered together: between two forwards, the thread does the calls that wait, and lets the scheduler
begin requests. This module knows neither terminals nor HTTP.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from akunu_py.decoding.scheduler import MAX_PARALLEL, Kind, Phase, Scheduler, Sequence
from akunu_py.errors import EngineClosedError, InvalidRequestError, QueueFullError
from akunu_py.event_stream import EventStream
from akunu_py.machine.backend import release_thread
from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.round import Finish, Round
from akunu_py.stats import Stats

if TYPE_CHECKING:
    from akunu_py.answer import Answer
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
        run: does the work; of a request, begins it.
        abandon: called instead if the work will not be done, with the error that prevents it, or
            with None if the task was taken back.
        sequence: what to schedule if it is a request, and `run` has given it a step.
    """

    run: "Callable[[Engine], None]"
    abandon: Callable[[BaseException | None], None]
    sequence: Sequence | None = None


class EngineWorker:
    """Starts loading an engine immediately, and then serves requests.

    Args:
        load: makes the engine; runs on the worker's thread.
        queue_limit: how many requests and calls may wait; None for any number.
        parallel: how many requests are answered at a time, fewer if memory is short. With 1,
            requests and calls are done one after another, though urgent requests overtake others
            that wait.

    Attributes:
        scheduler: says what runs; any thread may look at it.
        loading: the engine, or the error that prevents it. Other threads may use only those parts
            of the engine that never change or that say so: names, sizes, notices, counters.
    """

    def __init__(
        self,
        load: "Callable[[], Engine]",
        *,
        queue_limit: int | None = None,
        parallel: int = 1,
    ) -> None:
        if not 1 <= parallel <= MAX_PARALLEL:
            raise InvalidRequestError(
                f"The number of requests at a time must be from 1 to {MAX_PARALLEL}, "
                f"not {parallel}."
            )
        self.scheduler = Scheduler(parallel)
        self.loading: Future[Engine] = Future()
        self._load = load
        self._limit = queue_limit
        self._waiting: deque[_Task] = deque()
        self._streams: WeakSet[EventStream] = WeakSet()
        self._changed = Condition()  # reentrant: a signal handler may interrupt `_put`, and call it
        self._arrivals = 0
        self._all_refused = False  # nothing that waits may run beside what runs now
        self._closed = False
        self._calling = False
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
        return self._calling or bool(self.scheduler.running)

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
        kind: Kind = Kind.COMPLETION,
        queues: bool = True,
    ) -> EventStream:
        """Completes a prompt; see `Engine.stream` for the arguments and the errors.

        `prompt` may be a function that makes the prompt: it runs on the worker's thread just
        before the request begins. Errors are raised by the iteration. Of equally urgent requests,
        by `Options.priority` and `kind`, the earlier come first; a request that is cancelled while
        it waits leaves the queue and never reaches the engine. Events are kept until they are read,
        so a slow reader holds nobody. `queues` is whether the limit of the queue holds.

        Raises:
            QueueFullError: if the queue is full.
        """
        events = EventStream(lambda: self._take_back(task))
        self._streams.add(events)

        def cancelled() -> bool:
            return events.cancelled or self._closed

        def begin(engine: "Engine") -> None:
            if cancelled():
                abandon(None)
                return
            waited = perf_counter() - arrived
            try:
                answer = engine.begin(
                    prompt(engine) if callable(prompt) else prompt,
                    options,
                    suffix=suffix,
                    progress=progress,
                    cancelled=cancelled,
                )
            except BaseException as error:
                events.end(error)
            else:
                answer.stats.queue_s = waited
                events.answer = answer
                sequence.left = answer.tokens_left
                sequence.step = partial(_advance, answer, events)

        def abandon(reason: BaseException | None) -> None:
            if reason is None or isinstance(reason, EngineClosedError):
                events.put(Event(Round(finish=Finish.CANCELLED), (), Stats()))
                events.end()
            else:
                events.end(reason)

        arrived = perf_counter()
        priority = 0 if options is None else options.priority
        sequence = Sequence(kind=kind, priority=priority, cancelled=cancelled)
        events.sequence = sequence
        task = _Task(begin, abandon, sequence)
        self._put(task, queues=queues)
        return events

    def close(self, timeout: float | None = None) -> bool:
        """Cancels the requests that run, ends those that wait, and ends the thread.

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

    def _put(self, task: _Task, *, queues: bool = True) -> None:
        with self._changed:
            if self._closed:
                raise EngineClosedError
            if queues and self._limit is not None and len(self._waiting) >= self._limit:
                raise QueueFullError
            if task.sequence is not None:
                self._arrivals += 1
                task.sequence.arrival = self._arrivals
            self._waiting.append(task)
            self._all_refused = False
            self._changed.notify()

    def _take_back(self, task: _Task) -> None:
        """Abandons a task if it still waits."""
        with self._changed:
            if task not in self._waiting:
                return
            self._waiting.remove(task)
        task.abandon(None)

    def _lose(self, error: Exception) -> None:
        """Ends all requests with an error; for any thread, while the worker's may wait for ever."""
        for events in list(self._streams):
            if not events.finished:
                events.end(error)

    def _await(self, save: Callable[[], bool] = lambda: False) -> bool:
        """Waits until there is something to do; False once the worker is closed.

        If there is nothing for a while, calls `save` until that returns False.
        """
        patience: float | None = _IDLE_S
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._waiting or self._closed, patience):
                    return not self._closed
            patience = 0 if save() else None

    def _take(self) -> _Task | None:
        """Removes the task that is to be done or begun now, if there is one."""
        running = self.scheduler.running
        if not self._waiting or self._all_refused:
            return None
        with self._changed:
            requests = {task.sequence: task for task in self._waiting if task.sequence}
            calls = [task for task in self._waiting if not task.sequence]
            one_by_one = self.scheduler.parallel == 1
            if one_by_one and running:
                calls = []
            elif one_by_one and requests:  # a call waits for the requests before it
                calls = [task for task in calls if task is self._waiting[0]]
            task = calls[0] if calls else None
            best = None if task else self.scheduler.candidate(requests)
            if best is not None:
                task = requests.pop(best)
                self.scheduler.pass_over(best, requests)
            if task is None:
                self._all_refused = True
            else:
                self._waiting.remove(task)
            return task

    def _serve(self, engine: "Engine") -> None:
        """Computes one forward after another, and what waits in between, until it is closed."""
        scheduler = self.scheduler
        while scheduler.running or self._await(lambda: self._use_idle_time(engine)):
            while (task := self._take()) is not None:
                self._calling = True
                task.run(engine)
                if task.sequence is not None and task.sequence.step is not None:
                    scheduler.admit(task.sequence)
                self._calling = False
            running = scheduler.running
            scheduler.advance()
            if scheduler.running is not running:
                self._all_refused = False

    def _use_idle_time(self, engine: "Engine") -> bool:
        """Does what no request should wait for; False if there is no more."""
        engine.measure_costs(lambda: bool(self._waiting) or self._closed)
        return engine.save_prompts() or engine.model.rest()

    def _work(self) -> None:
        self.loading.set_running_or_notify_cancel()  # from now on no waiter can cancel it
        try:
            engine = self._load()
            engine.model.on_lost(self._lose)
            self.scheduler.parallel = engine.fitting(self.scheduler.parallel)
            if self.scheduler.parallel > 1:
                _ = engine.batch.why_impossible  # tried here; other threads look at the outcome
        except BaseException as error:
            self.loading.set_exception(error)
            while self._await():
                while (task := self._take()) is not None:
                    task.abandon(error)
        else:
            self.loading.set_result(engine)
            if self.scheduler.parallel > 1:
                _ = engine.batch.why_impossible  # tried now, and not while a request waits
            self._serve(engine)
            self._saving = True
            engine.save_prompts(closing=True)
        finally:
            release_thread()


def _advance(answer: "Answer", events: EventStream, may_wait: bool) -> Phase | None:
    """A step of a sequence: hands the event out; see `Step`."""
    try:
        event = answer.advance(may_wait=may_wait)
    except BaseException as error:
        events.end(error)
        return Phase.DONE
    if event is not None:
        events.put(event)
    if answer.phase is Phase.DONE:
        events.end()
    elif events.sequence is not None:
        events.sequence.left = answer.tokens_left
    return answer.phase
