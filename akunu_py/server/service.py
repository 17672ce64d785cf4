"""Service: the engine's thread, as asyncio sees it.

Jobs go in, events come out; leaving the iteration cancels the job. A newer job may replace an older
one, an answer whose time is up ends, and what was done is counted. Knows no contract's
fields, and no HTTP beyond the errors it raises.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import perf_counter
from typing import TYPE_CHECKING

from akunu_py.errors import AkunuError
from akunu_py.request import Event
from akunu_py.server.errors import LoadingError, ShuttingDownError, SupersededError
from akunu_py.server.job import Job
from akunu_py.server.metrics import Metrics
from akunu_py.server.settings import ServerSettings
from akunu_py.stats import Finish, Stats
from akunu_py.worker.engine_worker import EngineWorker
from akunu_py.worker.event_stream import EventStream

if TYPE_CHECKING:
    from akunu_py.engine import Engine

logger = logging.getLogger(__name__)


class Service:
    """Answers jobs on an engine's thread. All of it belongs to one event loop.

    Args:
        worker: has the engine, or is loading it.
        settings: tell whether prompts may be logged.

    Attributes:
        metrics: what has been done so far.
    """

    def __init__(self, worker: EngineWorker, settings: ServerSettings) -> None:
        self.metrics = Metrics()
        self._worker = worker
        self._logs_prompts = settings.log_prompts
        self._answers: dict[_Answer, None] = {}
        self._stopping = False

    @property
    def engine(self) -> "Engine":
        """The engine; only what never changes of it may be used.

        Raises:
            LoadingError: if it is not there yet.
            AkunuError: if it will never be.
        """
        if not self._worker.loading.done():
            raise LoadingError
        return self._worker.loading.result()

    @property
    def processing(self) -> int:
        """How many answers are being worked on: one at most."""
        return int(self._worker.busy)

    @property
    def waiting(self) -> int:
        """How many answers wait for their turn."""
        return self._worker.queue_depth

    @property
    def running(self) -> list[Stats]:
        """The statistics of the answers under way, as far as they have come."""
        for answer in list(self._answers):
            answer.take()
        return [answer.last.stats for answer in self._answers if answer.last is not None]

    async def stream(self, job: Job, *, at_once: bool = False) -> AsyncGenerator[Event, None]:
        """Answers, a round at a time; the last event, and only it, has a finish reason.

        Leaving the iteration cancels the job, so iterate within `contextlib.aclosing`.

        Args:
            job: what to answer.
            at_once: whether all rounds may come together, after the last; the event loop has no
                work with them before.

        Raises:
            LoadingError: while there is no engine.
            QueueFullError: if too many jobs wait already.
            SupersededError: if a newer job came that replaces it.
            ShuttingDownError: if the server is about to end.
            AkunuError: if the job cannot be done.
        """
        answer = self._admit(job, at_once=at_once)
        deadline = _Deadline(job.predict_s)
        try:
            while True:
                event = await answer.next()
                if deadline.has_passed(event):
                    answer.end_early()
                if event.finish_reason is Finish.CANCELLED:
                    event.round.finish = Finish.LENGTH
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            answer.events.cancel()

    async def complete(self, job: Job) -> list[Event]:
        """Answers, and returns all events once it is done; being cancelled cancels the job. See
        `stream` for the errors."""
        at_once = job.predict_s is None  # what a deadline ends is watched from its first line on
        async with aclosing(self.stream(job, at_once=at_once)) as events:
            return [event async for event in events]

    def stop(self) -> None:
        """Ends all jobs under way and takes on no more."""
        self._stopping = True
        for answer in self._answers:
            answer.abandon(ShuttingDownError())

    def _admit(self, job: Job, *, at_once: bool) -> "_Answer":
        if self._stopping:
            raise ShuttingDownError
        _ = self.engine
        for rival in self._answers:
            if job.replaces(rival.job):
                rival.abandon(SupersededError())
        if self._logs_prompts:
            logger.info("prompt: %r, suffix: %r", job.prompt, job.suffix)
        events = self._worker.stream(job.prompt, job.options, suffix=job.suffix)
        answer = _Answer(job, events, self._settle)
        self._answers[answer] = None
        answer.listen(end_only=at_once)
        return answer

    def _settle(self, answer: "_Answer", last: Event | None) -> None:
        """Books an answer that has ended, whether or not anybody read it to the end."""
        del self._answers[answer]
        if last is not None:
            cancelled = last.finish_reason is Finish.CANCELLED and not answer.overdue
            self.metrics.add(last.stats, cancelled=cancelled)
            logger.debug("%s", _told(last.stats, "cancelled" if cancelled else last.finish_reason))


def _told(stats: Stats, end: str | None) -> str:
    """An answer in a line of the log."""
    return (
        f"{stats.prompt_tokens} prompt tokens ({stats.cached_tokens} cached), "
        f"{stats.generated_tokens} generated ({stats.accepted} of {stats.drafted} drafts), {end}"
    )


class _Answer:
    """A job under way, and the events of it that nobody has taken yet.

    Args:
        job: what is answered.
        events: as they come from the engine's thread.
        settle: called once they have ended, with the last of them if there were any.

    Attributes:
        overdue: whether its time is up.
        last: the last event that has come.
    """

    def __init__(
        self,
        job: Job,
        events: EventStream,
        settle: Callable[["_Answer", Event | None], None],
    ) -> None:
        self.job = job
        self.overdue = False
        self.events = events
        self._settle = settle
        self.last: Event | None = None
        self._come: deque[Event | BaseException] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._abandoned = False

    def listen(self, *, end_only: bool) -> None:
        """Begins to take events over from the engine's thread, to the end, wanted or not; with
        `end_only`, not before the end."""
        loop = asyncio.get_running_loop()
        self.events.listen(lambda: loop.call_soon_threadsafe(self.take), end_only=end_only)

    async def next(self) -> Event:
        """The next event; for one reader.

        Raises:
            Exception: what broke the answer off.
        """
        while not self._come:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        come = self._come.popleft()
        if isinstance(come, BaseException):
            raise come
        return come

    def end_early(self) -> None:
        """Ends the answer with what it has, as soon as that can be."""
        self.overdue = True
        self.events.cancel()

    def abandon(self, why: AkunuError) -> None:
        """Ends the answer with an error, and the job as soon as it can be."""
        self._put(why)
        self._abandoned = True
        self.events.cancel()

    def take(self) -> None:
        """Takes over what has come."""
        if self.events.ended:
            return
        for event in self.events.take():
            self.last = event
            self._put(event)
        if self.events.ended:
            if self.events.error is not None:
                self._put(self.events.error)
            self._settle(self, self.last)

    def _put(self, come: Event | BaseException) -> None:
        if not self._abandoned:
            self._come.append(come)
            if self._reader is not None and not self._reader.done():
                self._reader.set_result(None)


class _Deadline:
    """Tells when an answer's time is up: counted from its first token, and not before it has a
    whole line, so that a slow machine still completes something."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._begun: float | None = None
        self._has_line = False

    def has_passed(self, event: Event) -> bool:
        if self._seconds is None:
            return False
        now = perf_counter()
        if self._begun is None and event.tokens:
            self._begun = now
        self._has_line = self._has_line or "\n" in event.text
        return self._has_line and self._begun is not None and now - self._begun > self._seconds
