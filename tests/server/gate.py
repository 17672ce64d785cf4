"""Gate: holds a real engine just before one of its forwards, so that tests need no clock."""

from pathlib import Path
from threading import Event as Flag
from typing import Any

import akunu_py
from akunu_py.engine import Engine

PATIENCE_S = 60.0


class Gate:
    """Loads an engine whose forwards can be held.

    Args:
        model: its folder.
        settings: of the engine.
    """

    def __init__(self, model: Path, **settings: Any) -> None:
        self._model = model
        self._settings = settings
        self._open = Flag()
        self._reached = Flag()
        self._left = -1

    def load(self) -> Engine:
        engine = akunu_py.load(str(self._model), **self._settings)
        model: Any = engine.model
        forward = model.forward

        def held_forward(*arguments: Any) -> Any:
            if self._left == 0:
                self._reached.set()
                assert self._open.wait(PATIENCE_S)
            self._left -= 1
            return forward(*arguments)

        model.forward = held_forward
        return engine

    def close(self, *, after: int) -> None:
        """Holds the engine when it has done that many more forwards."""
        self._open.clear()
        self._reached.clear()
        self._left = after

    def wait(self) -> None:
        """Returns once the engine is held."""
        assert self._reached.wait(PATIENCE_S)

    def open(self) -> None:
        """Lets the engine go on."""
        self._open.set()
