"""Screen: the input and output of a conversation through a pipe; standard input as text."""

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, BinaryIO, Final

from akunu_py.cli.conversation import Turn
from akunu_py.cli.render import AnswerWriter
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.round import Finish

if TYPE_CHECKING:
    from akunu_py.engine import Engine

CONTEXT_FULL: Final = "The context is full; /reset starts again, and /save FILE keeps a copy."


class Screen:
    """A conversation through a pipe: a turn for each line, answers as plain text.

    As on a terminal, a backslash at the end of a line continues the turn on the next line.
    `TerminalScreen` is the one for a terminal.
    """

    def __init__(self, loading: "Future[Engine]") -> None:
        self._loading = loading
        self._lines: Iterator[str] = read_lines()

    def session(self) -> AbstractContextManager[None]:
        """A context for the whole conversation."""
        return nullcontext()

    def read(self) -> str | None:
        """The user's next input; None once the user has left.

        Raises:
            AkunuError: if the model has failed to load in the meantime.
        """
        for line in self._lines:
            said = line
            while said.endswith("\\") and (following := next(self._lines, None)) is not None:
                said = f"{said[:-1]}\n{following}"
            if said.strip():
                return said
        return None

    def await_model(self) -> "Engine":
        """Waits until the model is loaded.

        Raises:
            AkunuError: if it does not load.
        """
        return self._loading.result()

    def progress(self, done: int, total: int) -> None:
        """Takes the prompt tokens done and in total; called on the worker's thread."""

    def show_turn(self, turn: Turn, *, show_drafts: bool) -> None:
        """Answers a turn, and shows the answer as it grows."""
        writer = AnswerWriter(sys.stdout, show_drafts=show_drafts)
        for event in turn:
            writer.write(event.pieces)
        writer.end_line()
        if turn.finish is Finish.CONTEXT:
            self.notice(CONTEXT_FULL)

    def say(self, text: str) -> None:
        """Shows the reply of a command."""
        self.notice(text)

    def notice(self, text: str) -> None:
        """Shows one line of information."""
        print(text, file=sys.stderr)

    def complain(self, error: AkunuError) -> None:
        """Shows an error, or raises it if the user cannot react to it."""
        raise error

    def interrupted(self) -> None:
        """Handles Ctrl-C outside an answer; may raise `KeyboardInterrupt`."""
        raise KeyboardInterrupt


def read_text() -> str:
    """All of standard input, unchanged.

    Raises:
        InvalidRequestError: if it is not valid UTF-8.
    """
    return _decode(_standard_input().read(), "Standard input")


def read_lines() -> Iterator[str]:
    """The lines of standard input as they arrive, without line ends.

    Raises:
        InvalidRequestError: if one is not valid UTF-8.
    """
    for number, line in enumerate(_standard_input(), start=1):
        yield _decode(line, f"Line {number} of standard input").rstrip("\r\n")


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InvalidRequestError("Standard input is closed.")
    return sys.stdin.buffer


def _decode(content: bytes, what: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{what} is not valid UTF-8 (byte {error.start + 1}); convert it, for example with "
            "iconv."
        ) from None
