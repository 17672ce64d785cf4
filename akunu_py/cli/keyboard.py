"""AnswerKeyboard: what keys do while an answer is written.

Ctrl-C stops the answer; other keys are kept, unseen, for the prompt that follows.
"""

import signal
import sys
import termios
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

_PATIENCE: Final = 3
"""The press of Ctrl-C that no longer waits for the answer to stop."""


class AnswerKeyboard:
    """A context in which Ctrl-C calls a function instead of raising, and keys are not echoed.

    Should the answer not stop, the third press raises `KeyboardInterrupt` after all. For the main
    thread only, where signals arrive.

    Args:
        on_interrupt: called at the first press, from a signal handler.
    """

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._presses = 0
        self._handler: Any = None
        self._terminal: list[Any] | None = None

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGINT, self._interrupted)
        if sys.stdin.isatty():
            self._terminal = termios.tcgetattr(sys.stdin)
            silent = list(self._terminal)
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._terminal is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal)
        signal.signal(signal.SIGINT, self._handler)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        self._presses += 1
        if self._presses >= _PATIENCE:
            raise KeyboardInterrupt
        self._on_interrupt()
