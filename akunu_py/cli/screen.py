"""Screen: what a conversation is read from and shown on; and the one for pipes."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from akunu_py.cli.conversation import Turn
from akunu_py.cli.render import AnswerWriter
from akunu_py.cli.standard_input import read_lines
from akunu_py.errors import AkunuError
from akunu_py.stats import Finish

if TYPE_CHECKING:
    from akunu_py.engine import Engine

CONTEXT_FULL: Final = "The context is full; /reset begins afresh, and /save FILE keeps a copy."


class Screen(Protocol):
    """Where the user is."""

    def session(self) -> AbstractContextManager[None]:
        """What holds while the conversation goes on."""

    def read(self) -> str | None:
        """The next thing the user says; None once the user has left.

        Raises:
            AkunuError: if the model has failed to load in the meantime.
        """

    def await_model(self) -> "Engine":
        """Waits until the model is loaded.

        Raises:
            AkunuError: if it does not load.
        """

    def progress(self, done: int, total: int) -> None:
        """Told about prompt tokens done and to do, on another thread."""

    def show_turn(self, turn: Turn, *, show_drafts: bool) -> None:
        """Receives an answer and shows it as it grows."""

    def say(self, text: str) -> None:
        """Shows what a command has to say."""

    def notice(self, text: str) -> None:
        """Shows one line that the user should know of."""

    def complain(self, error: AkunuError) -> None:
        """Tells that something cannot be done, or raises it where nobody could react."""

    def interrupted(self) -> None:
        """Goes on after Ctrl-C while no answer was under way, or raises `KeyboardInterrupt`."""


class PipeScreen:
    """One turn a line of standard input; answers go to standard output as plain text.

    Args:
        loading: the engine that will answer, once it is there.
    """

    def __init__(self, loading: "Future[Engine]") -> None:
        self._loading = loading
        self._lines: Iterator[str] = read_lines()

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> str | None:
        return next((line for line in self._lines if line.strip()), None)

    def await_model(self) -> "Engine":
        return self._loading.result()

    def progress(self, done: int, total: int) -> None:
        pass

    def show_turn(self, turn: Turn, *, show_drafts: bool) -> None:
        writer = AnswerWriter(sys.stdout, show_drafts=show_drafts)
        for event in turn:
            writer.write(event.pieces)
        writer.end_line()
        if turn.finish is Finish.CONTEXT:
            self.notice(CONTEXT_FULL)

    def say(self, text: str) -> None:
        self.notice(text)

    def notice(self, text: str) -> None:
        print(text, file=sys.stderr)

    def complain(self, error: AkunuError) -> None:
        raise error

    def interrupted(self) -> None:
        raise KeyboardInterrupt
