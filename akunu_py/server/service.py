"""Service: the engine's thread, as asyncio sees it.

Work goes in, events come out; leaving the iteration cancels the work. It bounds the queue, lets
newer work for a slot replace older, ends answers whose time is up, and counts what was done. Knows
no contract's fields and no HTTP beyond the errors it raises.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

from akunu_py.event_stream import EventStream
from akunu_py.request import Completion, Event
from akunu_py.server.errors import (
    LoadingError,
    QueueFullError,
    ServerError,
    ShuttingDownError,
    SupersededError,
)
from akunu_py.server.metrics import Metrics
from akunu_py.server.settings import ServerSettings
from akunu_py.server.work import Work
from akunu_py.stats import Finish, Stats
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine

logger = logging.getLogger(__name__)


class Service:
    """Answers work on an engine's thread. All of it belongs to one event loop.

    Args:
        worker: has the engine, or is loading it.
        settings: how long the queue may be, and whether prompts may be logged.

    Attributes:
        metrics: what has been done so far.
    """

    def __init__(self, worker: EngineWorker, settings: ServerSettings) -> None:
        self.metrics = Metrics()
        self._worker = worker
        self._settings = settings
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
            raise LoadingError("Loading model")
        return self._worker.loading.result()

    @property
    def processing(self) -> int:
        """How many answers are being worked on: one at most."""
        return min(1, len(self._answers))

    @property
    def waiting(self) -> int:
        """How many answers wait for their turn."""
        return len(self._answers) - self.processing

    @property
    def busy_slots(self) -> frozenset[int]:
        """The slots that have work."""
        return frozenset(a.work.slot for a in self._answers if a.work.slot is not None)

    async def stream(self, work: Work) -> AsyncGenerator[Event, None]:
        """Answers, a round at a time; the last event, and only it, has a finish reason.

        Leaving the iteration cancels the work, so iterate within `contextlib.aclosing`.

        Raises:
            LoadingError: while there is no engine.
            QueueFullError: if too much work waits already.
            SupersededError: if newer work for the slot came.
            ShuttingDownError: if the server is about to end.
            AkunuError: if the work cannot be done.
        """
        answer = self._admit(work)
        deadline = _Deadline(work.predict_s)
        try:
            while True:
                event = await answer.next()
                if deadline.has_passed(event):
                    answer.events.cancel()
                if event.finish_reason is Finish.CANCELLED:
                    event = replace(event, finish_reason=Finish.LENGTH)
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            answer.events.cancel()

    async def complete(self, work: Work) -> Completion:
        """Answers at once; being cancelled cancels the work. See `stream` for the errors."""
        text: list[str] = []
        tokens: list[int] = []
        async with aclosing(self.stream(work)) as events:
            async for event in events:
                text.append(event.text)
                tokens.extend(event.tokens)
        finish = event.finish_reason or Finish.CANCELLED
        return Completion(self.engine.model.name, "".join(text), tokens, finish, event.stats)

    def stop(self) -> None:
        """Ends all work under way and takes on no more."""
        self._stopping = True
        for answer in self._answers:
            answer.abandon(ShuttingDownError("The server is shutting down."))

    def _admit(self, work: Work) -> "_Answer":
        if self._stopping:
            raise ShuttingDownError("The server is shutting down.")
        _ = self.engine
        for answer in self._answers:
            if work.slot is not None and answer.work.slot == work.slot:
                answer.abandon(SupersededError("A newer request took this one's slot."))
        if self.waiting >= self._settings.queue > 0 or (
            self._settings.queue == 0 and self.processing
        ):
            raise QueueFullError(f"{self.waiting} requests wait already; try again soon.")
        if self._settings.log_prompts:
            logger.info("prompt: %r, suffix: %r", work.prompt, work.suffix)
        events = self._worker.stream(work.prompt, work.options, suffix=work.suffix)
        answer = _Answer(work, events)
        self._answers[answer] = None
        answer.pump = asyncio.create_task(self._pump(answer))
        return answer

    async def _pump(self, answer: "_Answer") -> None:
        """Carries events over from the engine's thread, to the end whether or not wanted."""
        loop = asyncio.get_running_loop()
        stats = Stats()
        try:
            while (
                event := await loop.run_in_executor(None, next, answer.events, None)
            ) is not None:
                stats = event.stats
                answer.put(event)
        except Exception as error:
            if not isinstance(error, ServerError):
                logger.debug("an answer failed", exc_info=error)
            answer.put(error)
        finally:
            del self._answers[answer]
            self.metrics.add(stats, cancelled=answer.events.cancelled)


class _Answer:
    """Work under way, and the events of it that nobody has taken yet."""

    def __init__(self, work: Work, events: EventStream) -> None:
        self.work = work
        self.events = events
        self.pump: asyncio.Task[None] | None = None
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._abandoned = False

    async def next(self) -> Event:
        """The next event, or the error that ends them."""
        come = await self._queue.get()
        if isinstance(come, Exception):
            raise come
        return come

    def put(self, come: Event | Exception) -> None:
        """Appends an event, or the error that ends them."""
        if not self._abandoned:
            self._queue.put_nowait(come)

    def abandon(self, why: ServerError) -> None:
        """Ends the answer with an error, and the work as soon as it can be."""
        self.put(why)
        self._abandoned = True
        self.events.cancel()


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
