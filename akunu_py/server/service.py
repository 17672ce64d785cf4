"""Service: the engine's thread, as an object for asyncio.

Jobs go in, events or completions come out. A newer job may replace an older one, a job may have a
deadline, and finished jobs are counted. The service knows neither the fields of an API nor HTTP,
except for the errors that it raises.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as Many
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from threading import Event as Flag
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from akunu_py.errors import InvalidRequestError
from akunu_py.events import Completion, Event, EventStream
from akunu_py.model.library import LocalModel
from akunu_py.options import Options
from akunu_py.prompt import EncodedPrompt, PromptInput, encode_prompt
from akunu_py.rounds import Finish, Stats
from akunu_py.sequence import Kind, Sequence
from akunu_py.server.errors import ApiError, UnavailableError
from akunu_py.server.settings import ServerSettings
from akunu_py.text.fim import FillRequest
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine

logger = logging.getLogger(__name__)

_EVENTS_AT_ONCE: Final = 256
"""After this many events, which take a millisecond or two, the event loop does other work."""
SHUTTING_DOWN: Final = "The server is shutting down."

T = TypeVar("T")


@dataclass(eq=False)
class Job:
    """One completion that a client wants. It has its `sequence` and `events` once it has started.

    It ends `predict_s` seconds after its first token, but not before it has a whole line, so that a
    slow machine still completes something. `slot` is the client's number for what it works on, not
    a cache: plugins send the same for every file, and the engine finds the best cache by content.
    Its answer repeats the text `echo`. `peer` is without the port, because plugins open a
    connection per request.
    """

    prompt: PromptInput
    options: Options
    predict_s: float | None = None
    slot: int | None = None
    is_chat: bool = False
    echo: str = ""
    peer: str = field(default="", init=False)
    encoded: EncodedPrompt | None = field(default=None, init=False)
    sequence: Sequence = field(init=False)
    events: EventStream = field(init=False)
    overdue: bool = field(default=False, init=False)

    @property
    def kind(self) -> Kind:
        if self.is_chat:
            return Kind.CHAT
        return Kind.FILL_IN if isinstance(self.prompt, FillRequest) else Kind.COMPLETION

    def prompt_text(self, decode: Callable[[Many[int]], str]) -> str:
        """The prompt as text; for a gap, the text before it."""
        if isinstance(self.prompt, str):
            return self.prompt
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix
        return decode(self.prompt)

    @property
    def kept_bytes(self) -> int:
        """Roughly how many bytes of its request's body it keeps in memory."""
        if isinstance(self.prompt, FillRequest):
            around = len(self.prompt.prefix) + len(self.prompt.suffix)
            return around + sum(len(file.text) for file in self.prompt.files)
        return len(self.prompt) * (1 if isinstance(self.prompt, str) else 8)

    def variant(self, choice: int) -> Self:
        """The job for one of several choices. With a seed, choices are repeatable but different,
        also from those of other seeds below 2^32."""
        if not choice:
            return self
        if self.options.seed is None:
            return replace(self)
        seed = self.options.seed + (choice << 32)
        return replace(self, options=replace(self.options, seed=seed))

    def replaces(self, older: "Job") -> bool:
        """Whether a client sends this job in place of an older one: it has the same slot, and the
        user has typed or deleted text before the same gap. Without a gap, the texts must begin
        alike. The address must be the same too; programs on one machine or behind one proxy cannot
        be told apart, because plugins send no name and all share the API key."""
        if self.slot is None or (self.slot, self.peer) != (older.slot, older.peer):
            return False
        if self.options.grammar is not None:  # it may still turn out to be too complex
            return False
        (before, gap), (old_before, old_gap) = self._split(), older._split()
        shared = min(len(before), len(old_before))
        is_same = gap == old_gap and before[:shared] == old_before[:shared]
        return is_same and (shared > 0 or gap is not None)

    def _split(self) -> tuple[str | Many[int], object]:
        if isinstance(self.prompt, FillRequest):
            return self.prompt.prefix, replace(self.prompt, prefix="")
        return self.prompt, None


def before_gap(prompt: PromptInput, suffix: str | None) -> PromptInput:
    """The prompt, or if there is a suffix, the gap between both."""
    if suffix is None:
        return prompt
    if not isinstance(prompt, str):
        raise InvalidRequestError("A suffix needs a text prompt.")
    return FillRequest(prompt, suffix)


@dataclass(slots=True)
class Metrics:
    """Counts since the server started; a request counts when it has ended, `answers` also if
    cancelled, `computed_tokens` of prompts not. `longest`: the most tokens of a prompt and its
    answer.
    """

    answers: int = 0
    cancelled: int = 0
    longest: int = 0
    computed_tokens: int = 0
    sums: Stats = field(default_factory=Stats)
    by_kind: dict[Kind, Stats] = field(default_factory=lambda: {kind: Stats() for kind in Kind})

    def add(self, stats: Stats, kind: Kind, *, cancelled: bool) -> None:
        self.answers += 1
        self.cancelled += cancelled
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)
        if stats.generated_tokens or not cancelled:
            self.computed_tokens += stats.prompt_tokens - stats.cached_tokens
        self.sums.include(stats)
        self.by_kind[kind].include(stats)


class Service:
    """Runs jobs on the thread of a loaded engine. Use it only in one event loop. Answers have the
    first of `model_names`; `defaults` are the operator's, or else the model authors'.
    """

    def __init__(
        self,
        worker: EngineWorker,
        settings: ServerSettings,
        model: LocalModel,
        names: tuple[str, ...],
        metrics: Metrics,
    ) -> None:
        self.settings = settings
        self.model = model
        self.model_names = names
        self.defaults = settings.defaults.or_else(model.sampling)
        self.metrics = metrics
        self.active: list[Job] = []
        """The jobs that are waiting or running."""
        self.worker = worker
        self._calls: set[asyncio.Future[Any]] = set()
        self.trials: set[Flag] = set()
        """The events of requests whose grammar is being tried, to set when nobody waits for
        them."""
        self._stopping = False

    @property
    def engine(self) -> "Engine":
        """The engine; use only those parts of it that never change."""
        return self.worker.loading.result()

    @property
    def model_name(self) -> str:
        return self.model_names[0]

    @property
    def processing(self) -> int:
        return len(self.worker.scheduler.running) or int(self.worker.busy)

    @property
    def why_in_turns(self) -> str | None:
        """Why jobs that run at the same time do not share forward passes; None if they do."""
        if self.worker.scheduler.parallel == 1:
            return None
        if self.defaults.exact and not self.engine.costs.shares_exact:
            return "Exact requests take turns: no shared pass computes just what single ones do."
        return self.engine.batch.why_impossible

    @property
    def is_encoding(self) -> bool:
        return self.engine.tokenizer.is_encoding

    def encode(self, jobs: Many[Job]) -> None:
        """Encodes the prompts of a request and compiles its grammar, so that an invalid one is
        refused before the request waits; any thread may call this. Raises InvalidRequestError (see
        `encode_prompt` and `Engine.compile`), and QueueFullError if too many grammars are waiting.
        """
        engine, last = self.engine, None
        for job in jobs:
            if last is None or job.prompt is not last.prompt:  # the choices of a prompt share it
                limit = engine.context_limit
                job.encoded = encode_prompt(engine.model, job.prompt, job.options, limit)
            else:
                job.encoded = last.encoded
            if last is None:
                job.options = engine.compile(job.options)
            elif job.options.grammar is not None:  # the request has one
                job.options = replace(job.options, grammar=last.options.grammar)
            last = job

    def stream(
        self, jobs: Many[Job], *, end_only: bool = False
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Starts the jobs of one request, as many at a time as the engine answers. Each event comes
        with the index of its job; the last one of a job has a finish reason. With `end_only`, all
        events of a job may come together at its end, so that the event loop is not woken for each
        round.

        Leaving the iteration cancels the jobs, so iterate immediately, within
        `contextlib.aclosing`. Raises QueueFullError for the first job only, so that a request that
        has begun is not refused; ApiError if a newer job replaces one of these, or the server is
        stopping; and the AkunuError of a failed job.
        """
        self._start(jobs[0], end_only=end_only)
        if len(jobs) == 1:
            return self._read(0, jobs[0])
        return self._read_together(jobs, end_only=end_only)

    async def complete(self, jobs: Many[Job]) -> list[Completion]:
        """Runs the jobs of one request and returns the completions; see `stream`. Cancelling the
        call cancels the jobs."""
        completions = [Completion(self.engine.model.name) for _ in jobs]
        async with aclosing(self.stream(jobs, end_only=True)) as events:
            taken = 0
            async for index, event in events:
                completions[index].add(event)
                taken += 1
                if taken % _EVENTS_AT_ONCE == 0:  # at its end, a long answer has many at once
                    await asyncio.sleep(0)
        return completions

    async def call(self, task: Callable[["Engine"], T], *, queues: bool = True) -> T:
        """Runs a function on the engine's thread; see `EngineWorker.submit`."""
        self.check_stopping()
        call = asyncio.wrap_future(self.worker.submit(task, queues=queues))
        self._calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            self.check_stopping()
            raise
        finally:
            self._calls.discard(call)

    def stop(self) -> None:
        """Ends all active jobs and calls, and accepts no more."""
        self._stopping = True
        for call in self._calls:
            call.cancel()
        for left in self.trials:
            left.set()
        for job in self.active:
            job.events.abort(UnavailableError(SHUTTING_DOWN))

    def check_stopping(self) -> None:
        """Raises an `UnavailableError` if the server is stopping."""
        if self._stopping:
            raise UnavailableError(SHUTTING_DOWN)

    async def _read(self, index: int, job: Job) -> AsyncGenerator[tuple[int, Event], None]:
        deadline, has_line = None, False
        try:
            async for event in job.events:
                if job.predict_s is not None:
                    if deadline is None and event.tokens:
                        deadline = perf_counter() + job.predict_s
                    has_line = has_line or "\n" in event.text
                    if has_line and deadline is not None and perf_counter() > deadline:
                        job.overdue = True
                        job.events.cancel()
                yield index, event
        finally:
            job.events.cancel()

    async def _read_together(
        self, jobs: Many[Job], *, end_only: bool
    ) -> AsyncGenerator[tuple[int, Event], None]:
        arrived: asyncio.Queue[tuple[int, Event] | None] = asyncio.Queue()
        free = asyncio.Semaphore(self.worker.scheduler.parallel)

        async def read(index: int, job: Job) -> None:
            async with free:
                if index:
                    self._start(job, end_only=end_only, is_first=False)
                async with aclosing(self._read(index, job)) as events:
                    async for entry in events:
                        arrived.put_nowait(entry)

        def ended(reading: asyncio.Future[list[None]]) -> None:
            if not reading.cancelled():
                reading.exception()  # otherwise asyncio reports it if nobody reads on
            arrived.put_nowait(None)

        tasks = [asyncio.ensure_future(read(index, job)) for index, job in enumerate(jobs)]
        reading = asyncio.gather(*tasks)
        reading.add_done_callback(ended)
        try:
            while (entry := await arrived.get()) is not None:
                yield entry
            await reading
        finally:
            jobs[0].events.cancel()
            for task in tasks:
                task.cancel()

    def _start(self, job: Job, *, end_only: bool, is_first: bool = True) -> None:
        """Starts a job; the first one of a request may be refused, or may replace older jobs."""
        self.check_stopping()
        if self.settings.log_prompts:
            logger.info("prompt: %r", job.prompt)
        job.sequence = Sequence(job.encoded or job.prompt, job.options, job.kind)
        if job.encoded is not None:
            job.sequence.stats.prompt_tokens = len(job.encoded.tokens)
        job.events = self.worker.stream(job.sequence, queues=is_first)
        for older in self.active if is_first else ():
            if job.replaces(older):
                sentence = "A newer request has replaced this one."
                older.events.abort(ApiError(HTTPStatus.CONFLICT, sentence, "superseded_error"))
        self.active.append(job)
        # With a deadline, each event is needed when it happens.
        end_only = end_only and job.predict_s is None
        job.events.attach(lambda: self._finish(job), end_only=end_only)

    def _finish(self, job: Job) -> None:
        """Counts a job that has ended, whether or not its events were read to the end."""
        self.active.remove(job)
        last = job.events.last
        if last is None:
            return
        stats, cancelled = last.stats, last.finish_reason is Finish.CANCELLED and not job.overdue
        self.metrics.add(stats, job.kind, cancelled=cancelled)
        ending = "cancelled" if cancelled else last.finish_reason
        logger.debug("%s, %s: %s", job.kind, ending, stats)
