"""What keys do while there is no prompt: they wait, unseen, for the next one; Ctrl-C may stop."""

import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Final

_PATIENCE: Final = 3
"""The press of Ctrl-C that no longer waits for something to stop."""


@contextmanager
def unseen_keys() -> Iterator[None]:
    """A context in which keys are neither echoed nor taken for commands, Ctrl-C excepted."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def stopped_by_ctrl_c(stop: Callable[[], None]) -> Iterator[None]:
    """A context in which Ctrl-C calls a function instead of raising.

    Should that not help, the third press raises `KeyboardInterrupt` after all. For the main
    thread only, where signals arrive.

    Args:
        stop: called from a signal handler.
    """
    presses = count(1)

    def interrupted(_: int, __: FrameType | None) -> None:
        if next(presses) >= _PATIENCE:
            raise KeyboardInterrupt
        stop()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
