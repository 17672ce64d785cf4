"""The connections of MLX's ring, as the system sees them.

MLX notices a lost connection once, where it reads or writes; whatever is sent over it later waits
for ever. So this module finds MLX's sockets and looks whether the other ends have closed them.
"""

import json
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISSOCK
from typing import Any, Final

from akunu_py.errors import RankError

HOSTS_VARIABLE: Final = "MLX_HOSTFILE"

_CLOSED: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def ring_hosts() -> str:
    """What the ring's file of hosts says; `mlx.launch` leaves it empty for one process.

    Raises:
        RankError: if it cannot be read.
    """
    try:
        return Path(os.environ[HOSTS_VARIABLE]).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise RankError(f"The hosts in MLX_HOSTFILE cannot be read: {error.strerror}.") from error


def ring_sockets(rank: int, hosts: str) -> list[int]:
    """The descriptors of a rank's connections with its neighbours.

    Args:
        rank: the one of this process.
        hosts: what `ring_hosts` returned; each rank listens, and the one before it connects.
    """
    addresses: list[list[str]] = json.loads(hosts)
    own, after = addresses[rank], addresses[(rank + 1) % len(addresses)]
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
    """Whether the other end of one of some connections has been closed."""
    looking = select.poll()
    for one in sockets:
        looking.register(one, _CLOSED)
    return bool(looking.poll(0))


def _text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
