"""Ranks: the processes that run one model together, and the messages that keep them in step.

Rank 0 decides, and the others do what it says: before each forward it sends one message with the
changes of caches since the last one, and the tokens of the forward. A message also carries a
checksum of all lengths so far, which the others compare with theirs. The transport is MLX's: a
message is a sum over all ranks, to which the others add zeros.
"""

import atexit
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from signal import SIGINT, getsignal, signal
from statistics import median
from threading import Event, Thread, Timer, current_thread, main_thread
from time import monotonic, perf_counter, sleep
from typing import Any, Final, cast
from zlib import crc32

import mlx.core as mx

from akunu_py.errors import RankError
from akunu_py.ranks.ring import has_closed

LOST: Final = 3
"""The exit code of a process that lost another rank."""

EXIT_CODE: Final = ContextVar("exit_code", default=0)
"""The code that rank 0 ends with, and so the others, whom it tells at its end."""

MESSAGE_WORDS: Final = 64
"""Words of every message; a longer one is followed by a second message with the rest."""

_HEAD: Final = 3
LOADING: Final = 10
"""How many times as long the others may take to load, because their disks differ."""

_GRACE_S: Final = 1.0
_SECONDS_TO_STOP: Final = 2.0
_WORD: Final = 0x7FFFFFFF
_PROBES: Final = 20
_UNLIKE: Final = (
    "The ranks do not run the same thing: give all of them the same model, the same options, and "
    "the same versions of akunu-py and MLX."
)


class Ranks:
    """This process's place among the ranks.

    Args:
        group: all of them.
        backend: MLX's name of what connects them.
        timeout: seconds after which a rank that does not answer counts as lost.
        sockets: the connections with the others, as far as they are known.

    Attributes:
        rank: the number of this one; 0 decides.
        size: how many there are.
        on_lost: called by any thread with the error, shortly before it ends the process.
    """

    on_lost: Callable[[RankError], object] | None = None

    def __init__(
        self,
        group: mx.distributed.Group,
        backend: str,
        timeout: float,
        sockets: Sequence[int] = (),
    ) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self.backend = backend
        self.claimed = 0
        self._timeout = timeout
        self._sockets = sockets
        self._closed_at: float | None = None  # when one was seen to be closed
        self._limit = timeout  # seconds that the present wait may take
        self._number = 0
        self._checksum = 0
        self._queued: list[int] = []
        self._dropped: deque[int] = deque()  # any thread may drop a cache
        self._caches = 0
        self._since: float | None = None  # when a wait for the others began
        self._last: tuple[mx.array, float] | None = None  # what the last forward computes
        self._is_sending = False
        self._lost = False
        self._stopped = Event()
        Thread(target=self._watch, name="akunu-ranks", daemon=True).start()

    def __str__(self) -> str:
        return f"{self.size} ranks ({self.backend})"

    def check_same(self, facts: str, otherwise: str = _UNLIKE) -> None:
        """Compares a text with those of the other ranks, which may still load.

        Raises:
            RankError: if they differ; it says `otherwise`.
        """
        with self.guard(), self.waiting(LOADING * self._timeout):
            own = mx.array([crc32(facts.encode()) & _WORD])
            every = mx.distributed.all_gather(own, group=self.group).tolist()
        if len(set(cast(list[int], every))) > 1:
            raise RankError(otherwise)

    @contextmanager
    def guard(self) -> Generator[None, None, None]:
        """Turns what MLX raises about a lost connection into a `RankError`, and ends the process
        shortly after it."""
        try:
            yield
        except RuntimeError as error:
            if not re.match(r"\[(ring|jaccl|mpi|nccl|distributed)\]", str(error)):
                raise
            lost = RankError(f"{self._lost_line}: {reason_of(error)}.")
            if self.rank == 0:
                Thread(target=self._end, args=[lost], daemon=True).start()
            raise lost from error

    # What rank 0 does.

    def lead(self) -> None:
        """Tells the others to end when this process does, from now on."""
        atexit.register(self._leave)

    def new_cache(self) -> int:
        """A number for a cache."""
        self._caches += 1
        return self._caches

    def queue(self, *words: int) -> None:
        """Leaves an operation for the next message."""
        self._queued.extend(words)

    def drop(self, operation: int, number: int) -> None:
        """The same for a cache that nobody uses any more; any thread may call it."""
        self._dropped.extend((operation, number))

    def agree(self, *facts: int) -> None:
        """Adds facts to what all ranks must agree on."""
        self._checksum = crc32(repr(facts).encode(), self._checksum) & _WORD

    def send(self, words: Sequence[int], tokens: mx.array | None = None) -> mx.array:
        """Sends everything that was queued, and an operation; does not wait.

        Args:
            words: the operation.
            tokens: ids that follow it; they may be lazy.

        Returns:
            An array that is computed once the message has gone.
        """
        while self._dropped:
            self._queued.append(self._dropped.popleft())
        body, self._queued = [*self._queued, *words], []
        count = len(body) + (0 if tokens is None else tokens.size)
        self._number += 1
        parts = [mx.array([self._number & _WORD, self._checksum, count, *body], mx.int32)]
        if tokens is not None:
            parts.append(tokens.astype(mx.int32, stream=mx.cpu))
        parts.append(mx.zeros(max(0, MESSAGE_WORDS - _HEAD - count), mx.int32, stream=mx.cpu))
        message = mx.concatenate(parts, stream=mx.cpu)
        for part in (message[:MESSAGE_WORDS], message[MESSAGE_WORDS:]):
            if part.size:
                sent = mx.distributed.all_sum(part, group=self.group)
                mx.async_eval(sent)  # type: ignore[no-untyped-call]
        return sent

    @contextmanager
    def forward(self, words: Sequence[int], tokens: mx.array) -> Generator[None, None, None]:
        """Sends a forward, which must be built and submitted within it."""
        with _uninterrupted(), self.waiting():  # MLX waits where many operations are in flight
            self._is_sending = True
            try:
                self.send(words, tokens)
                yield
            finally:  # also if no rank can build it
                self._is_sending = False

    def watch(self, result: mx.array) -> None:
        """Expects a forward to be computed in time."""
        self._last = result, monotonic()

    def wait(self) -> None:
        """Waits for all that was submitted.

        Raises:
            RankError: if a rank is lost.
        """
        with self.guard(), self.waiting():
            mx.synchronize()

    def pause(self, operation: int, seconds: float) -> float:
        """Lets the others sleep for so long; returns the seconds until all knew.

        Raises:
            RankError: if a rank is lost.
        """
        begun = perf_counter()
        with self.guard(), _uninterrupted(), self.waiting():
            mx.eval(self.send([operation, round(1e3 * seconds)]))
        return perf_counter() - begun

    def broadcast_seconds(self, operation: int) -> float:
        """How long a message takes: the median of a few."""
        return median(self.pause(operation, 0) for _ in range(_PROBES))

    def stop(self, code: int = 0) -> None:
        """Tells the others to end, with an exit code."""
        if self._lost or self._is_sending or self._stopped.is_set():
            return
        self._queued.clear()  # what was interrupted may be incomplete
        self._dropped.clear()
        with suppress(RankError), self.guard(), self.waiting():
            mx.eval(self.send([0, code]))
        self._stopped.set()

    def _leave(self) -> None:
        """Does that when the process ends, which waits for the others only briefly."""
        ending = Timer(_SECONDS_TO_STOP, os._exit, [EXIT_CODE.get()])
        ending.daemon = True
        ending.start()
        self.stop(EXIT_CODE.get())
        ending.cancel()

    # What the others do.

    def receive(self) -> list[int]:
        """Waits for a message; returns its words.

        Raises:
            RankError: if rank 0 is lost, or this one has lost count.
        """
        with self.guard(), self.waiting():
            words = self._take(MESSAGE_WORDS)
            self._number += 1
            number, self.claimed, count = words[:_HEAD]
            if number != self._number & _WORD:
                raise RankError(f"Rank {self.rank} is out of step with rank 0.")
            more = count + _HEAD - MESSAGE_WORDS
            return (words + (self._take(more) if more > 0 else []))[_HEAD : _HEAD + count]

    def check(self) -> None:
        """Compares the checksum of the last message with this rank's.

        Raises:
            RankError: if they differ.
        """
        if self.claimed != self._checksum:
            raise RankError(f"Rank {self.rank} holds other tokens than rank 0.")

    def _take(self, count: int) -> list[int]:
        words = mx.distributed.all_sum(mx.zeros(count, mx.int32), group=self.group)
        return cast(list[int], words.tolist())

    @property
    def _lost_line(self) -> str:
        other = "rank 0" if self.rank else "another rank"
        return f"Rank {self.rank} has lost {other}"

    @contextmanager
    def waiting(self, limit: float | None = None) -> Generator[None, None, None]:
        """Surrounds what may wait for other ranks: if it does for too long, the process ends."""
        self._limit, self._since = limit or self._timeout, monotonic()
        try:
            yield
        finally:
            self._since = None

    def _watch(self) -> None:
        """Ends the process if the others let it wait too long: MLX itself would wait for ever."""
        while not self._stopped.wait(min(_GRACE_S, self._timeout) / 4):
            if self._closed_at is None and has_closed(self._sockets):
                self._closed_at = monotonic()
            since, last = self._since, self._last
            if since is not None and self._is_late(since, self._limit):
                self._give_up(f"it did not answer in {self._limit:g} s")
            if last is not None and self._is_late(last[1], self._timeout):
                if last is self._last:
                    self._last = None
                reader = Thread(target=self._read, args=(last[0],), daemon=True)
                reader.start()
                reader.join(_GRACE_S)
                if reader.is_alive():
                    self._give_up(f"a forward took {self._timeout:g} s")

    def _is_late(self, since: float, limit: float) -> bool:
        """Whether a wait since then will not end: for too long, or for nobody."""
        now, closed_at = monotonic(), self._closed_at
        return now - since > limit or (
            closed_at is not None and now - max(since, closed_at) > _GRACE_S
        )

    def _give_up(self, reason: str) -> None:
        reason = reason if self._closed_at is None else "connection to a peer was lost"
        self._end(RankError(f"{self._lost_line}: {reason}."))

    def _read(self, result: mx.array) -> None:
        """Waits for an array of another thread; its errors are that thread's."""
        with suppress(Exception):
            mx.eval(result)

    def _end(self, error: RankError) -> None:
        """Ends the process: its threads may wait in MLX, which nothing interrupts."""
        if self._lost:
            return  # another thread does it
        self._lost = True
        if self.on_lost is not None:
            self.on_lost(error)
        if self.rank == 0:
            sleep(_GRACE_S)  # requests and the terminal get the error
        if not self._stopped.is_set():
            print(f"akunu-py: {error}", file=sys.stderr, flush=True)
        os._exit(LOST)


@contextmanager
def _uninterrupted() -> Generator[None, None, None]:
    """Lets SIGINT wait until a forward is submitted: others compute it once they know of it."""
    usual = getsignal(SIGINT)
    if current_thread() is not main_thread() or not callable(usual):
        yield
        return
    came: list[Any] = []
    signal(SIGINT, lambda *details: came.append(details))
    try:
        yield
    finally:
        signal(SIGINT, usual)
    if came:
        usual(*came[-1])


def reason_of(error: Exception) -> str:
    """What MLX says about a connection, without the name of the transport."""
    return re.sub(r"^\[\w+\]\s*", "", " ".join(str(error).split())).rstrip(".")
