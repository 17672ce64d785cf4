"""Ranks: the processes that run one model together, their connections, and the messages that keep
them in step.

Before each forward pass, rank 0 sends one message with the changes of caches since the last one,
the tokens of the pass, and a checksum of all lengths so far, which the others compare with theirs.
A message is a sum over all ranks, to which the others add zeros.

MLX reports a lost connection only once, when it reads or writes; later operations on it wait
forever. So this module finds the sockets of MLX's ring, and watches whether the other end closes.
"""

import atexit
import json
import os
import re
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from signal import SIG_DFL, SIGINT, getsignal, signal
from stat import S_ISSOCK
from threading import Event, Thread, Timer, current_thread, main_thread
from time import monotonic, perf_counter, sleep
from typing import Any, Final, cast
from zlib import crc32

import mlx.core as mx

from akunu_py.errors import RankError
from akunu_py.machine.backend import launched_rank, rank_variable

_HOSTS_VARIABLE: Final = "MLX_HOSTFILE"
_BACKENDS: Final = {
    "MLX_JACCL_COORDINATOR": "jaccl",
    "NCCL_HOST_IP": "nccl",
    _HOSTS_VARIABLE: "ring",
}
"""MLX's backends by their environment variables; MPI sets its own."""

_PORTS: Final = 65536
_CLOSED: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def connect() -> tuple[mx.distributed.Group | None, str]:
    """All ranks, if there are others, and MLX's name of the transport.

    The command line connects before anything that can fail in one process only: the others would
    wait for a process that ends before they reach it. Raises a `RankError` if they cannot be
    reached.
    """
    rank = launched_rank()
    backend = next((name for key, name in _BACKENDS.items() if key in os.environ), "mpi")
    if rank is None or (backend == "ring" and len(ring_hosts()) < 2):
        return None, backend
    try:
        # MLX waits for the others without letting Python run, so SIGINT ends the process.
        with sigint_does(SIG_DFL):
            group = mx.distributed.init(strict=True, backend=backend)  # the same one from now on
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"Rank {rank} cannot reach the others: {reason_of(error)}. If there are none, unset "
            f"{rank_variable()}."
        ) from error
    return (group if group.size() > 1 else None), backend


def ring_hosts() -> list[list[str]]:
    """The addresses of each rank; `mlx.launch` leaves the file of hosts empty for one process.
    Raises a `RankError` for wrong files, because MLX crashes or waits forever with some of them.
    """
    try:
        text = Path(os.environ[_HOSTS_VARIABLE]).read_text(encoding="utf-8").strip()
        hosts: list[list[str]] = json.loads(text) if text else []
        for addresses in hosts:
            for address in addresses:
                if not 0 < int(address.rpartition(":")[2]) < _PORTS:
                    raise ValueError
    except OSError as error:
        raise RankError(f"The hosts in MLX_HOSTFILE cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise RankError(
            'The file in MLX_HOSTFILE must hold a JSON list like [["10.0.0.1:5000"], '
            '["10.0.0.2:5000"]]; `mlx.launch` writes it.'
        ) from error
    return hosts


def ring_sockets(rank: int, hosts: Sequence[Sequence[str]]) -> list[int]:
    """The descriptors of a rank's connections with its neighbours; the preceding one connects."""
    own, after = hosts[rank], hosts[(rank + 1) % len(hosts)]
    found = []
    for name in os.listdir("/dev/fd"):
        with suppress(OSError):  # it is closed by now, or not connected
            if not S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                is_ring = _text(copy.getpeername()) in after or _text(copy.getsockname()) in own
            if is_ring:
                found.append(int(name))
    return found


def has_closed(sockets: Sequence[int]) -> bool:
    """Whether the other end of any of these connections has been closed."""
    looking = select.poll()
    for one in sockets:
        looking.register(one, _CLOSED)
    return bool(looking.poll(0))


def reason_of(error: Exception) -> str:
    """What MLX says about a connection, without the name of the transport."""
    return re.sub(r"^\[\w+\]\s*", "", " ".join(str(error).split())).rstrip(".")


def _text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""


@contextmanager
def sigint_does(action: Any) -> Generator[None, None, None]:
    """A context that handles SIGINT in another way, on the main thread of a program that handles
    it."""
    usual = getsignal(SIGINT)
    if current_thread() is not main_thread() or not callable(usual):
        yield
        return
    signal(SIGINT, action)
    try:
        yield
    finally:
        signal(SIGINT, usual)


LOST: Final = 3
"""The exit code of a process that lost another rank."""

EXIT_CODE: Final = ContextVar("exit_code", default=0)
"""The exit code of rank 0, which it sends to the others when it ends."""

_MESSAGE_WORDS: Final = 64
"""Words per message; if there are more, a second message with the rest follows."""
_HEAD: Final = 2
_LOADING: Final = 10
"""The others may take this many times as long to load, because their disks differ."""
_GRACE_S: Final = 1.0
_SECONDS_TO_STOP: Final = 2.0
_WORD: Final = 0x7FFFFFFF
_UNLIKE: Final = (
    "The ranks differ: give all of them the same model, the same options, and the same versions of "
    "akunu-py and MLX."
)


class Ranks:
    """This process's place among the ranks; rank 0 decides.

    `backend` is MLX's name of the transport, and `sockets` are the connections with the others, as
    far as they are known. A rank that does not answer for `timeout` seconds counts as lost;
    `on_lost` is then called on any thread with the error, shortly before the process ends.
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
        self._timeout = timeout
        self._sockets = sockets
        self._checksum = self._claimed = 0
        self._queued: deque[int] = deque()
        self._waiting: tuple[float, float] | None = None  # since when, and for at most how long
        self._is_sending = False
        self._lost = False
        self._stopped = Event()
        Thread(target=self._watch, name="akunu-ranks", daemon=True).start()

    def __str__(self) -> str:
        return f"{self.size} ranks ({self.backend})"

    def check_same(self, facts: str, otherwise: str = _UNLIKE) -> None:
        """Compares a text with those of the other ranks, which may still be loading."""
        with self.guard(_LOADING * self._timeout):
            own = mx.array([crc32(facts.encode()) & _WORD])
            every = mx.distributed.all_gather(own, group=self.group).tolist()
        if len(set(cast(list[int], every))) > 1:
            raise RankError(otherwise)

    @contextmanager
    def guard(self, limit: float | None = None) -> Generator[None, None, None]:
        """A context for code that may wait for other ranks; ends the process if one is lost.

        The code may take `limit` seconds, or the timeout; a guard inside restarts the time. A lost
        connection that MLX reports raises a `RankError`, and the process ends shortly after it.
        """
        before, self._waiting = self._waiting, (monotonic(), limit or self._timeout)
        try:
            yield
        except RuntimeError as error:
            if not re.match(r"\[(ring|jaccl|mpi|nccl|distributed)\]", str(error)):
                raise
            lost = self._lost_error(reason_of(error))
            if self.rank == 0:
                Thread(target=self._end, args=[lost], daemon=True).start()
            raise lost from error
        finally:
            self._waiting = None if before is None else (monotonic(), before[1])

    # Methods of rank 0.

    def lead(self) -> None:
        """From now on, tells the others to end when this process ends."""
        atexit.register(self._leave)

    def queue(self, *words: int) -> None:
        """Puts an operation into the next message; any thread may call it."""
        self._queued.extend(words)

    def agree(self, *facts: int) -> None:
        self._checksum = crc32(repr(facts).encode(), self._checksum) & _WORD

    def send(self, words: Sequence[int], tokens: mx.array | None = None) -> mx.array:
        """Sends everything queued, and an operation with its tokens, which may be lazy.

        It does not wait, but returns an array that is computed once the message is sent.
        """
        body = [self._queued.popleft() for _ in range(len(self._queued))]
        body += words
        count = len(body) + (0 if tokens is None else tokens.size)
        parts = [mx.array([self._checksum, count, *body], mx.int32)]
        if tokens is not None:
            parts.append(tokens.astype(mx.int32, stream=mx.cpu))
        parts.append(mx.zeros(max(0, _MESSAGE_WORDS - _HEAD - count), mx.int32, stream=mx.cpu))
        message = mx.concatenate(parts, stream=mx.cpu)
        for part in (message[:_MESSAGE_WORDS], message[_MESSAGE_WORDS:]):
            if part.size:
                sent = mx.distributed.all_sum(part, group=self.group)
                mx.async_eval(sent)  # type: ignore[no-untyped-call]
        return sent

    @contextmanager
    def forward(self, words: Sequence[int], tokens: mx.array) -> Generator[None, None, None]:
        """Sends a forward pass, which must be built and submitted in this context."""
        with _uninterrupted(), self.guard():  # MLX waits while many operations are in flight
            self._is_sending = True
            try:
                self.send(words, tokens)
                yield
            finally:  # even if no rank can build it
                self._is_sending = False

    def pause(self, operation: int, seconds: float) -> float:
        """Pauses the other ranks; returns the seconds until all of them got the message."""
        begun = perf_counter()
        with _uninterrupted(), self.guard():
            mx.eval(self.send([operation, round(1e3 * seconds)]))
        return perf_counter() - begun

    def stop(self, code: int = 0) -> None:
        if self._lost or self._is_sending or self._stopped.is_set():
            return
        self._queued.clear()  # after an interrupt, it may be incomplete
        with suppress(RankError), self.guard():
            mx.eval(self.send([0, code]))
        self.finish()

    def _leave(self) -> None:
        ending = Timer(_SECONDS_TO_STOP, os._exit, [EXIT_CODE.get()])
        ending.daemon = True
        ending.start()
        self.stop(EXIT_CODE.get())
        ending.cancel()

    # Methods of the other ranks.

    def receive(self) -> list[int]:
        with self.guard():
            words = self._take(_MESSAGE_WORDS)
            self._claimed, count = words[:_HEAD]
            more = count + _HEAD - _MESSAGE_WORDS
            return (words + (self._take(more) if more > 0 else []))[_HEAD : _HEAD + count]

    def check(self) -> None:
        """Raises a `RankError` if the checksum of the last message differs from this rank's."""
        if self._claimed != self._checksum:
            raise RankError(f"Rank {self.rank} and rank 0 hold different tokens.")

    def finish(self) -> None:
        self._stopped.set()

    def _take(self, count: int) -> list[int]:
        words = mx.distributed.all_sum(mx.zeros(count, mx.int32), group=self.group)
        return cast(list[int], words.tolist())

    # When a rank is lost.

    def _watch(self) -> None:
        """Ends the process if another one has ended or does not answer: MLX would wait forever."""
        while not self._stopped.wait(min(_GRACE_S, self._timeout) / 4):
            if has_closed(self._sockets) and not self._stopped.wait(_GRACE_S):
                self._end(self._lost_error("connection to a peer was lost"))
            waiting = self._waiting
            if waiting is not None and monotonic() - waiting[0] > waiting[1]:
                self._end(self._lost_error(f"it did not answer in {waiting[1]:g} s"))

    def _lost_error(self, reason: str) -> RankError:
        other = "rank 0" if self.rank else "another rank"
        return RankError(f"Rank {self.rank} has lost {other}: {reason}.")

    def _end(self, error: RankError) -> None:
        """Ends the process: its threads may wait in MLX, which nothing interrupts."""
        if self._lost:
            return  # another thread ends it
        self._lost = True
        if self.on_lost is not None:
            self.on_lost(error)
        if self.rank == 0:
            sleep(_GRACE_S)  # requests and the terminal get the error
        if not self._stopped.is_set():
            print(f"akunu-py: {error}", file=sys.stderr, flush=True)
        os._exit(LOST)


def find_ranks(timeout: float) -> Ranks | None:
    """Connects with the other ranks, if `mlx.launch` started this process with others; raises a
    `RankError` if that fails."""
    group, backend = connect()
    if group is None:
        return None
    sockets = ring_sockets(group.rank(), ring_hosts()) if backend == "ring" else ()
    return Ranks(group, backend, timeout, sockets)


@contextmanager
def _uninterrupted() -> Generator[None, None, None]:
    """Delays SIGINT until a forward pass is submitted, because the others are already computing
    it."""
    usual: Any = getsignal(SIGINT)
    came: list[Any] = []
    with sigint_does(lambda *details: came.append(details)):
        yield
    if came:
        usual(*came[-1])
