"""The events that an engine sends while an answer grows, and their sum.

An `EventStream` passes the events of one request from the engine's thread to one reader: a thread
that iterates, or an event loop with `async for`, which is woken once per batch of events.
"""

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

from akunu_py.rounds import Finish, Round, Stats
from akunu_py.text.stream import Piece
from akunu_py.tokens import PromptLogprobs, TokenLogprob

_SIGNAL_INTERVAL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Event:
    """One round of an answer, as text that can be shown now, one piece per token.

    >>> first = next(engine.stream("def mean(values):", max_tokens=3))
    >>> len(first.tokens) >= 1, first.finish_reason
    (True, None)

    `stats` are the request's sums so far. `prompt_logprobs` comes once, before any token, if asked
    for; `stop` is the stop string that ended the text; `prompt_done`, in a progress report only,
    how many tokens of the prompt have been computed or were cached.
    """

    round: Round
    pieces: tuple[Piece, ...]
    stats: Stats
    prompt_logprobs: PromptLogprobs | None = None
    stop: str | None = None
    prompt_done: int | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """The emitted ids, without end tokens."""
        return self.round.tokens

    @property
    def finish_reason(self) -> Finish | None:
        """Why the text ended; None while it continues."""
        return self.round.finish

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """One per token, if the request asked for them."""
        return self.round.logprobs

    @property
    def end_logprob(self) -> TokenLogprob | None:
        """The log-probability of the end token, if the text ended with one and the request asked
        for it."""
        return self.round.end_logprob

    @property
    def log_probability(self) -> float:
        """That of its tokens and its end token together; 0 if the request did not ask for it."""
        said = (*self.logprobs, *filter(None, [self.end_logprob]))
        return sum(token.logprob for token in said)

    @property
    def text(self) -> str:
        """The text of all pieces."""
        return "".join([piece.text for piece in self.pieces])


@dataclass
class Completion:
    """The answer to a request: the sum of its events so far.

    >>> answer = engine.generate("def mean(values):", max_tokens=3)
    >>> len(answer.token_ids), str(answer.finish_reason)
    (3, 'length')

    `token_ids` are without end tokens. `finish_reason` is a word: `eos` (an end token, or the
    grammar is complete), `stop` (the stop string `stop`), `length` (`max_tokens`), `context` (the
    context is full), or `cancelled`, also until the last event says otherwise.
    `help(answer.stats.as_dict)` names the statistics. Log-probabilities, one per token, of the end
    token and of the prompt, are there if the request asked for them.
    """

    model: str
    pieces: list[Piece] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Finish = Finish.CANCELLED
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    end_logprob: TokenLogprob | None = None
    prompt_logprobs: PromptLogprobs | None = None
    stop: str | None = None

    @property
    def text(self) -> str:
        """The text, up to a stop string."""
        return "".join([piece.text for piece in self.pieces])

    def __str__(self) -> str:
        return self.text

    def add(self, event: Event) -> None:
        """Adds the next event."""
        self.pieces.extend(event.pieces)
        self.token_ids.extend(event.tokens)
        self.finish_reason = event.finish_reason or self.finish_reason
        self.stats = event.stats
        self.logprobs.extend(event.logprobs)
        self.end_logprob = event.end_logprob
        self.stop = event.stop
        self.prompt_logprobs = self.prompt_logprobs or event.prompt_logprobs


class Answering:
    """The events of an answer that is computed while they are read, and their sum so far.

    Read them with `for`, or with `async for`, which lets other tasks run before each round, but not
    while the prompt is computed. As a context manager, it ends the answer at the end of the block.
    `check` raises where the engine cannot be used; the answer goes on where it can.
    """

    def __init__(
        self,
        events: Generator[Event, None, None],
        completion: Completion,
        check: Callable[[], object],
    ) -> None:
        self.completion = completion
        self._events = events
        self._check = check

    def close(self) -> None:
        """Ends the answer."""
        self._check()
        self._events.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        self._check()
        event = next(self._events)
        self.completion.add(event)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        await asyncio.sleep(0)
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None


def _nothing() -> None:
    """Called by `cancel` once there is nothing left to cancel."""


class EventStream:
    """The events of one request, in order. `cancel` calls `on_cancel`; a thread calls `before_wait`
    before it waits for an event. Any thread may look at `last`, the newest event, read or not.

    A thread reads the events with `for`, an event loop with `async for`. As a context manager, the
    stream cancels the rest of the request at the end of the block.
    """

    def __init__(
        self,
        on_cancel: Callable[[], object] = _nothing,
        *,
        before_wait: Callable[[], object] = _nothing,
    ) -> None:
        self.last: Event | None = None
        self.finished = False
        self.cancelled = False
        self._queue: SimpleQueue[Event | BaseException | None] = SimpleQueue()
        self._exhausted = False
        self._on_cancel = on_cancel
        self._before_wait = before_wait
        self._on_finish: Callable[[], object] = _nothing
        self._aborted: BaseException | None = None
        self._wake: Callable[[], object] | None = None
        self._wake_pending = False
        self._end_only = False
        self._arrived = asyncio.Event()  # for the event loop

    def cancel(self) -> None:
        """Ends the request: immediately if it is still waiting, else after the current chunk or
        round.

        A last event still comes, with the finish reason CANCELLED. Any thread and any signal
        handler may call this.
        """
        self.cancelled = True
        self._on_cancel()

    def abort(self, error: BaseException) -> None:
        """Cancels the request and raises `error` at the reader immediately; for the event loop."""
        self._aborted = error
        self._arrived.set()
        self.cancel()

    def attach(self, on_finish: Callable[[], object], *, end_only: bool = False) -> None:
        """Lets the running event loop read the events; `async for` does this by itself. Calls
        `on_finish` on the loop when the engine is done, even if not all events have been read.

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
        """Ends the events, with the error that caused it, if any; a second call does nothing."""
        if self.finished:
            return
        self._queue.put(error)
        self.finished = True
        self._on_cancel = _nothing  # it refers to this stream: no cycle for the garbage collector
        self._notify()

    def _notify(self) -> None:
        """Wakes the event loop, unless it is about to look anyway."""
        if self._wake is None or self._wake_pending or (self._end_only and not self.finished):
            return
        self._wake_pending = True
        try:
            self._wake()
        except Exception:  # the event loop is closed, but this thread must continue
            self._wake = None
            self.cancel()

    def _woken(self) -> None:
        self._wake_pending = False  # first, so that later events wake the loop again
        self._arrived.set()
        if self.finished:
            self._wake = None  # it refers to this stream
            on_finish, self._on_finish = self._on_finish, _nothing
            on_finish()

    def __aiter__(self) -> Self:
        if self._wake is None:
            self.attach(_nothing)
        return self

    async def __anext__(self) -> Event:
        while self._aborted is None:
            if self._exhausted or not self._queue.empty():
                return self._take(StopAsyncIteration)
            self._arrived.clear()
            await self._arrived.wait()
        raise self._aborted

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        # A signal just before a wait, or on another thread, does not end that wait. Short waits let
        # the main thread run its signal handlers.
        if self._queue.empty() and not self._exhausted:
            self._before_wait()
        while True:
            with suppress(Empty):
                return self._take(StopIteration, _SIGNAL_INTERVAL_S)

    def ready(self) -> Iterator[Event]:
        """The events that have already arrived, and then the error that ended them, if any."""
        while not (self._exhausted or self._queue.empty()):
            try:
                event = self._take(StopIteration)
            except StopIteration:
                return
            yield event

    def _take(self, end: type[Exception], timeout: float | None = None) -> Event:
        """The next event; raises the error that ended them, or else `end`."""
        if self._exhausted:
            raise end
        entry = self._queue.get(timeout=timeout)
        if isinstance(entry, Event):
            return entry
        self._exhausted = True
        try:
            raise end if entry is None else entry
        finally:
            del entry  # its traceback refers to this frame, and so to the request

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()
