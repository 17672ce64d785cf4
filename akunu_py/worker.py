"""EngineWorker: an engine on its own thread, used from other threads or from an event loop.

MLX arrays belong to the thread that made them. So one thread loads the engine and does everything
with it; other threads wait for results, or read events as they come. Between two forward passes,
the thread makes waiting calls, and the scheduler admits requests. This module knows neither
terminals nor HTTP.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from threading import Condition, get_ident
from typing import TYPE_CHECKING, Final, TypeVar

from akunu_py.errors import EngineClosedError, InvalidRequestError, QueueFullError
from akunu_py.events import Event, EventStream
from akunu_py.machine.device_memory import give_back_memory
from akunu_py.machine.threads import Turns, check_process, start
from akunu_py.options import MAX_PARALLEL, Options
from akunu_py.rounds import Finish, Round, Stats
from akunu_py.scheduler import Scheduler
from akunu_py.sequence import Sequence

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.prompt import Asked

_PAUSE_S: Final = 0.5
"""After this long without a request, costs are measured; a new request waits for at most one
forward pass."""

_IDLE_S: Final = 2.0
"""After this long without a request, prompts are saved, a file at a time."""

_TRIM_EVERY_S: Final = 10.0
"""Memory is also freed after requests that were refused before they reached the engine."""

T = TypeVar("T")

_Call = tuple[int, "Callable[[Engine], object]", "Future[object]"]
"""A waiting call: its place in the order of arrival, the function, and its outcome."""


class EngineWorker:
    """Starts loading an engine immediately, on its own thread, and then serves requests, `parallel`
    at a time, fewer if memory is short. With 1, requests and calls are done one after another,
    though urgent requests overtake other waiting ones. `queue_limit` may wait, or any number; the
    engines of this process that share `turns` compute one at a time.

    Any thread may look at `scheduler`. `loading` is the engine, or the error that prevented it;
    other threads may use only what never changes or allows it: names, sizes, notices, counters.
    """

    def __init__(
        self,
        load: "Callable[[], Engine]",
        *,
        queue_limit: int | None = None,
        parallel: int = 1,
        turns: Turns | None = None,
    ) -> None:
        if not 1 <= parallel <= MAX_PARALLEL:
            raise InvalidRequestError(
                f"`parallel` must be from 1 to {MAX_PARALLEL}, not {parallel}."
            )
        self.scheduler = Scheduler(parallel)
        self.loading: Future[Engine] = Future()
        self._load = load
        self._process = os.getpid()
        self._limit = queue_limit
        self._turns = turns or Turns()
        self._calls: deque[_Call] = deque()
        self._changed = Condition()  # reentrant: a signal handler may interrupt `_put`, and call it
        self._closed = False
        self._calling = False
        self._saving = False
        self._thread = 0
        self._done = start(self._work)

    @property
    def failed(self) -> bool:
        """Whether the engine could not be loaded."""
        return self.loading.done() and self.loading.exception() is not None

    @property
    def busy(self) -> bool:
        """Whether a request or a call is in progress; any thread may read this."""
        return self._calling or bool(self.scheduler.running)

    @property
    def queue_depth(self) -> int:
        """How many requests and calls are waiting; any thread may read this."""
        return len(self.scheduler.waiting) + len(self._calls)

    def call(self, task: "Callable[[Engine], T]") -> T:
        """Runs a function on the engine's thread and waits for its result. Raises the error of the
        function, or why the engine could not be loaded, and QueueFullError if the queue is full.
        """
        self._check_waiter()
        return self.submit(task).result()

    def submit(self, task: "Callable[[Engine], T]", *, queues: bool = True) -> "Future[T]":
        """Like `call`, but without waiting; raises QueueFullError if the queue is full and its
        limit holds (`queues`). If the future is cancelled in time, the function does not run.
        """
        outcome: Future[T] = Future()
        arrival = self.scheduler.next_arrival()
        self._put(lambda: self._calls.append((arrival, task, outcome)), queues=queues)  # type: ignore[arg-type]
        return outcome

    def stream(
        self,
        asked: "Asked | Sequence",
        options: Options | None = None,
        *,
        queues: bool = True,
    ) -> EventStream:
        """Completes a prompt; see `Engine.stream` for the arguments and the errors, which the
        iteration raises, and QueueFullError if the queue is full and its limit holds (`queues`).

        Among equally urgent requests, earlier ones come first; a request cancelled while it waits
        never reaches the engine. Events are kept until they are read, so a slow reader delays
        nobody.
        """
        sequence = Sequence.of(asked, options)
        sequence.may_be_cancelled = True
        cancel = partial(self._cancel, sequence)
        events = sequence.reader = EventStream(cancel, before_wait=self._check_waiter)
        self._put(lambda: self.scheduler.add(sequence), queues=queues)
        return events

    def close(self, timeout: float | None = None) -> bool:
        """Cancels running requests, ends waiting ones, and ends the thread.

        A waiting stream ends as if cancelled, a waiting call with an `EngineClosedError`.

        It waits up to `timeout` seconds for the thread (None: without limit) and returns whether it
        has ended. Loading cannot be interrupted, and saving prompts is waited for.
        """
        self._check_waiter()
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._abandon(None)
        self._done.wait(timeout)
        if self._saving:
            self._done.wait()
        return self._done.is_set()

    def _check_waiter(self) -> None:
        """Raises an `InvalidRequestError` if waiting for the worker would never end."""
        check_process(self._process)
        if get_ident() == self._thread and not self._done.is_set():
            raise InvalidRequestError(
                "A function that the engine calls cannot wait for the engine's worker or close it."
            )

    def _put(self, put: Callable[[], object], *, queues: bool) -> None:
        check_process(self._process)
        with self._changed:
            if self._closed:
                raise EngineClosedError
            if queues and self._limit is not None and self.queue_depth >= self._limit:
                raise QueueFullError
            put()
            self._changed.notify()

    def _cancel(self, sequence: Sequence) -> None:
        sequence.cancelled = True
        if self.scheduler.withdraw(sequence):
            _end(sequence, None)

    def _abandon(self, reason: BaseException | None) -> None:
        """Ends everything that is waiting, as cancelled unless there is another reason."""
        for sequence in list(self.scheduler.waiting):
            if self.scheduler.withdraw(sequence):
                _end(sequence, reason)
        with self._changed:
            calls, self._calls = self._calls, deque()
        for _, _, outcome in calls:
            if outcome.set_running_or_notify_cancel():
                outcome.set_exception(reason or EngineClosedError())

    def _lose(self, error: BaseException) -> None:
        """Ends all requests with an error; may be called while the engine's thread hangs."""
        self._abandon(error)
        for sequence in self.scheduler.running:
            _end(sequence, error)

    def _await(self, idle_work: Iterable[float] = ()) -> bool:
        """Waits until there is something to do; False once the worker is closed. Meanwhile, it does
        the idle work, each part after the seconds yielded before it."""
        for patience in chain(idle_work, [None]):
            with self._changed:
                if self._changed.wait_for(lambda: self.queue_depth or self._closed, patience):
                    break
        return not self._closed

    def _next_call(self) -> _Call | None:
        """Takes the call to make now; without parallel requests, it waits for earlier requests."""
        scheduler = self.scheduler
        with self._changed:
            if not self._calls:
                return None
            before = any(one.arrival < self._calls[0][0] for one in scheduler.waiting)
            if scheduler.parallel == 1 and (scheduler.running or before):
                return None
            return self._calls.popleft()

    def _make_call(self, engine: "Engine") -> None:
        """Makes the next call; only one per turn, because it may be a forward pass."""
        call = self._next_call()
        if call is None or not call[2].set_running_or_notify_cancel():
            return
        _, task, outcome = call
        self._calling = True
        try:
            outcome.set_result(task(engine))
        except BaseException as error:
            outcome.set_exception(error)
        self._calling = False

    def _serve(self, engine: "Engine") -> None:
        scheduler, runner = self.scheduler, engine.runner
        while scheduler.running or self._await(self._idle_work(engine)):
            try:
                with self._turns.turn(scheduler.rank, lambda: bool(scheduler.running)):
                    self._make_call(engine)
                    scheduler.admit(runner)
                    if self._closed:
                        for sequence in scheduler.running:
                            sequence.cancelled = True
                    scheduler.advance(runner)
            except BaseException as error:  # nothing should raise, but no reader may hang then
                self._lose(error)
                for sequence in scheduler.running:
                    with suppress(BaseException):
                        runner.close(sequence)
                scheduler.clear()

    def _idle_work(self, engine: "Engine") -> Iterator[float]:
        """Does the work that no request should wait for, not even one of another engine; yields how
        long to wait before each part."""

        def is_wanted() -> bool:
            return bool(self.queue_depth) or self._closed or self._turns.contended

        yield _PAUSE_S
        engine.measure_costs(is_wanted)
        yield _IDLE_S - _PAUSE_S
        give_back_memory()
        while engine.save_prompts() or engine.model.rest():
            yield 0.0
        while True:
            yield _TRIM_EVERY_S
            if not self._turns.contended:
                give_back_memory()
                engine.measure_costs(is_wanted)  # does nothing once they are measured

    def _work(self) -> None:
        self._thread = get_ident()
        self.loading.set_running_or_notify_cancel()  # from now on, no waiter can cancel it
        try:
            engine = self._load()
            engine.model.on_lost(self._lose)
            self.scheduler.parallel = engine.fitting(self.scheduler.parallel)
            if self.scheduler.parallel > 1:
                _ = (
                    engine.batch.why_impossible
                )  # tried here, because other threads read the outcome
        except BaseException as error:
            self.loading.set_exception(error)
            while self._await():
                self._abandon(error)
        else:
            self.loading.set_result(engine)
            self._serve(engine)
            self._saving = True
            engine.save_prompts(closing=True)


def _end(sequence: Sequence, reason: BaseException | None) -> None:
    reader = sequence.reader
    if reader is None:
        return
    if reason is None:
        reader.put(Event(Round(finish=Finish.CANCELLED), (), Stats()))
    reader.end(reason)
