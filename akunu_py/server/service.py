"""Service: the engine's thread, as an object for asyncio.

Jobs go in, events or completions come out. A newer job may replace an older one, a job may have a
deadline, and finished jobs are counted. The service knows neither the fields of a contract nor
HTTP, except for the errors that it raises.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Final

from akunu_py.decoding.scheduler import Scheduler
from akunu_py.event_stream import EventStream
from akunu_py.request import Completion, Event
from akunu_py.round import Finish
from akunu_py.server.errors import ApiError, LoadingError, UnavailableError
from akunu_py.server.job import Job
from akunu_py.server.metrics import Metrics
from akunu_py.server.settings import ServerSettings
from akunu_py.stats import Stats
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine

logger = logging.getLogger(__name__)

_SHUTTING_DOWN: Final = "The server is shutting down."
_SUPERSEDED: Final = "A newer request has replaced this one."


@dataclass(eq=False)
class _ActiveJob:
    """A job that waits or runs. It is overdue if its deadline has passed."""

    job: Job
    events: EventStream
    overdue: bool = False


class Service:
    """Does jobs on an engine's thread. Use it only in one event loop."""

    def __init__(self, worker: EngineWorker, settings: ServerSettings) -> None:
        self.metrics = Metrics()
        self._worker = worker
        self._logs_prompts = settings.log_prompts
        self._active: list[_ActiveJob] = []
        self._stopping = False

    @property
    def engine(self) -> "Engine":
        """The engine; use only those parts of it that never change.

        Raises:
            LoadingError: if it is not loaded yet.
            AkunuError: if it could not be loaded.
        """
        if not self._worker.loading.done():
            raise LoadingError
        return self._worker.loading.result()

    @property
    def processing(self) -> int:
        """How many jobs run."""
        return len(self._worker.scheduler.running) or int(self._worker.busy)

    @property
    def waiting(self) -> int:
        """How many jobs wait for their turn."""
        return self._worker.queue_depth

    @property
    def scheduler(self) -> Scheduler:
        """What decides which of them run; only look."""
        return self._worker.scheduler

    @property
    def why_in_turns(self) -> str | None:
        """Why jobs that run at the same time do not share forwards; None if they do."""
        return self.engine.batch.why_impossible if self.scheduler.parallel > 1 else None

    @property
    def active(self) -> list[tuple[Job, EventStream]]:
        """The jobs that wait or run."""
        return [(active.job, active.events) for active in self._active]

    @property
    def running(self) -> list[Stats]:
        """The statistics of the active jobs so far."""
        return [active.events.last.stats for active in self._active if active.events.last]

    def stream(self, job: Job, *, end_only: bool = False) -> AsyncGenerator[Event, None]:
        """Completes a prompt, round by round; the last event, and only it, has a finish reason.

        Leaving the iteration cancels the job, so iterate within `contextlib.aclosing`.
        With `end_only`, all events may come together at the end, which spares the event loop from
        waking up for each round.

        Raises:
            LoadingError: while there is no engine.
            QueueFullError: if too many jobs wait already.
            ApiError: if a newer job replaces this one, or the server is about to end.
            AkunuError: if the job cannot be done.
        """
        return self._read(lambda: self._start(job, end_only=end_only))

    async def stream_all(
        self, jobs: Sequence[Job], *, end_only: bool = False
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Completes the prompts of one request, as many at a time as the engine answers.

        Each event comes with the index of its job; see `stream`. The limit of the queue holds for
        the first job, so that a request that has begun is not refused any more.
        """
        if len(jobs) == 1:  # errors of tasks are in reference cycles
            async with aclosing(self.stream(jobs[0], end_only=end_only)) as events:
                async for event in events:
                    yield 0, event
            return
        arrived: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        free = asyncio.Semaphore(self.scheduler.parallel)
        first = self._start(jobs[0], end_only=end_only)

        async def read(index: int, job: Job) -> None:
            def start() -> _ActiveJob:
                return self._start(job, end_only=end_only, is_first=False) if index else first

            async with free, aclosing(self._read(start)) as events:
                async for event in events:
                    arrived.put_nowait((index, event))

        def ended(reading: asyncio.Future[list[None]]) -> None:
            if not reading.cancelled():
                reading.exception()  # or asyncio reports it if nobody reads on
            arrived.put_nowait(None)

        tasks = [asyncio.ensure_future(read(index, job)) for index, job in enumerate(jobs)]
        reading = asyncio.gather(*tasks)
        reading.add_done_callback(ended)
        try:
            while (entry := await arrived.get()) is not None:
                yield entry
            await reading
        finally:
            first.events.cancel()
            for task in tasks:
                task.cancel()

    async def complete(self, job: Job) -> Completion:
        """Completes a prompt and returns the whole; see `complete_all`."""
        (completion,) = await self.complete_all([job])
        return completion

    async def complete_all(self, jobs: Sequence[Job]) -> list[Completion]:
        """Completes several prompts and returns the whole; see `stream_all`. Cancelling the call
        cancels the jobs."""
        completions = [Completion(self.engine.model.name) for _ in jobs]
        async with aclosing(self.stream_all(jobs, end_only=True)) as events:
            async for index, event in events:
                completions[index].add(event)
        return completions

    async def _read(self, start: Callable[[], _ActiveJob]) -> AsyncGenerator[Event, None]:
        """The events of a job, which begins with the first; see `stream`."""
        active = start()
        job, deadline, has_line = active.job, None, False
        try:
            async for event in active.events:
                if job.predict_s is not None:
                    if deadline is None and event.tokens:
                        deadline = perf_counter() + job.predict_s
                    has_line = has_line or "\n" in event.text
                    if has_line and deadline is not None and perf_counter() > deadline:
                        active.overdue = True
                        active.events.cancel()
                yield event
        finally:
            active.events.cancel()

    def stop(self) -> None:
        """Ends all active jobs and accepts no more."""
        self._stopping = True
        for active in self._active:
            active.events.abort(UnavailableError(_SHUTTING_DOWN))

    def _start(self, job: Job, *, end_only: bool, is_first: bool = True) -> _ActiveJob:
        """Begins a job; the first of a request may be refused, and may replace older jobs."""
        if self._stopping:
            raise UnavailableError(_SHUTTING_DOWN)
        _ = self.engine  # raises while there is none
        for older in self._active if is_first else ():
            if job.replaces(older.job):
                older.events.abort(ApiError(HTTPStatus.CONFLICT, _SUPERSEDED, "superseded_error"))
        if self._logs_prompts:
            logger.info("prompt: %r, suffix: %r", job.prompt, job.suffix)
        events = self._worker.stream(
            job.prompt, job.options, suffix=job.suffix, kind=job.kind, queues=is_first
        )
        active = _ActiveJob(job, events)
        self._active.append(active)
        # A deadline needs each event when it happens.
        end_only = end_only and job.predict_s is None
        events.attach(lambda: self._finish(active), end_only=end_only)
        return active

    def _finish(self, active: _ActiveJob) -> None:
        """Counts a job that has ended, whether or not its events were read to the end."""
        self._active.remove(active)
        last = active.events.last
        if last is not None:
            cancelled = last.finish_reason is Finish.CANCELLED and not active.overdue
            self.metrics.add(last.stats, active.job.kind, cancelled=cancelled)
            stats = last.stats
            logger.debug(
                "%d prompt tokens (%d cached), %d generated (%d of %d drafts), %s",
                stats.prompt_tokens,
                stats.cached_tokens,
                stats.generated_tokens,
                stats.accepted,
                stats.drafted,
                "cancelled" if cancelled else last.finish_reason,
            )
