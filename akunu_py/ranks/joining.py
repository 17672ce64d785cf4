"""How this process connects with the other ranks, and notices that one is gone.

MLX reports a lost connection only once, when it reads or writes; later operations on it wait
forever. So this module finds the sockets of MLX's ring, and watches whether the other end closes.
"""

import json
import os
import re
import select
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIG_DFL, SIGINT, getsignal, signal
from stat import S_ISSOCK
from threading import current_thread, main_thread
from typing import Any, Final

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
