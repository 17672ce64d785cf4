"""How this process joins the other ranks, and how it leaves them."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from signal import (
    ITIMER_REAL,
    SIG_DFL,
    SIGINT,
    default_int_handler,
    getsignal,
    setitimer,
    signal,
)
from threading import current_thread, main_thread
from typing import Final

import mlx.core as mx

from akunu_py.errors import RankError
from akunu_py.machine.backend import launched_rank, rank_variable
from akunu_py.ranks.group import Ranks, reason_of
from akunu_py.ranks.ring import HOSTS_VARIABLE, ring_hosts, ring_sockets

_SECONDS_TO_JOIN: Final = 600.0
_BACKENDS: Final = {
    "MLX_JACCL_COORDINATOR": "jaccl",
    "NCCL_HOST_IP": "nccl",
    HOSTS_VARIABLE: "ring",
}
"""Which of MLX's backends a variable of the environment belongs to; MPI sets its own."""


def find_ranks(timeout: float) -> Ranks | None:
    """The other ranks, if `mlx.launch` started this process with others; connects with them.

    Args:
        timeout: seconds after which a rank that does not answer counts as lost.

    Raises:
        RankError: if they cannot be reached.
    """
    group, backend = connect()
    if group is None:
        return None
    sockets = ring_sockets(group.rank(), ring_hosts()) if backend == "ring" else ()
    return Ranks(group, backend, timeout, sockets)


def connect() -> tuple[mx.distributed.Group | None, str]:
    """All ranks, if there are others, and MLX's name of what connects them.

    The command line connects before anything that can fail in one process only: others would wait
    for one that ends before they have reached it.

    Raises:
        RankError: if they cannot be reached.
    """
    rank = launched_rank()
    backend = next((name for key, name in _BACKENDS.items() if key in os.environ), "mpi")
    if rank is None or (backend == "ring" and len(ring_hosts()) < 2):
        return None, backend
    try:
        with _ended_by_signals():
            group = mx.distributed.init(strict=True, backend=backend)  # the same one from now on
    except (RuntimeError, ValueError) as error:
        raise RankError(
            f"Rank {rank} cannot reach the others: {reason_of(error)}. If there are none, unset "
            f"{rank_variable()}."
        ) from error
    return (group if group.size() > 1 else None), backend


@contextmanager
def _ended_by_signals() -> Generator[None, None, None]:
    """Lets SIGINT, and SIGALRM after a while, end the process at once: MLX waits for the
    others without letting any other Python run, so there cannot be a sentence."""
    if current_thread() is not main_thread():
        yield
        return
    usual = getsignal(SIGINT)
    if usual is default_int_handler:
        signal(SIGINT, SIG_DFL)
    setitimer(ITIMER_REAL, _SECONDS_TO_JOIN)
    try:
        yield
    finally:
        setitimer(ITIMER_REAL, 0)
        if usual is default_int_handler:
            signal(SIGINT, usual)
