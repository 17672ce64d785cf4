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

_PORTS: Final = 65536
_CLOSED: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def ring_hosts() -> list[list[str]]:
    """The addresses of each rank; `mlx.launch` leaves the file of hosts empty for one process.

    MLX itself crashes or waits for ever with some wrong files.

    Raises:
        RankError: if the file cannot be read, or says something else.
    """
    try:
        text = Path(os.environ[HOSTS_VARIABLE]).read_text(encoding="utf-8").strip()
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
    """The descriptors of a rank's connections with its neighbours.

    Args:
        rank: the one of this process.
        hosts: what `ring_hosts` returned; each rank listens, and the one before it connects.
    """
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
    """Whether the other end of one of some connections has been closed."""
    looking = select.poll()
    for one in sockets:
        looking.register(one, _CLOSED)
    return bool(looking.poll(0))


def _text(address: Any) -> str:
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else ""
