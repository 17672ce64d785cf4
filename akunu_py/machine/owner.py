"""Owner: the thread and the process that an engine belongs to, and whether it is computing.

MLX arrays belong to the thread that made them, and a forked child has none of MLX's threads, so its
computations never end.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from threading import get_ident

from akunu_py.errors import InvalidRequestError


def check_process(process: int) -> None:
    """Raises an `InvalidRequestError` if this process has another id."""
    if os.getpid() != process:
        raise InvalidRequestError(
            "A model cannot be used in a forked child of the process that loaded one; start the "
            "child with `spawn`, and load the model there."
        )


class Owner:
    """The thread that creates it owns the engine."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._process = os.getpid()
        self._is_working = False

    def check(self) -> None:
        check_process(self._process)
        if get_ident() != self._thread:
            raise InvalidRequestError(
                "An engine can be used only on the thread that loaded it; for several threads, "
                "load it with an `EngineWorker`."
            )
        if self._is_working:
            raise InvalidRequestError(
                "The engine is computing, so functions that it calls, such as a drafter or a "
                "prompt function, cannot use it."
            )

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        """A context in which calls to the engine are refused."""
        before, self._is_working = self._is_working, True
        try:
            yield
        finally:
            self._is_working = before
