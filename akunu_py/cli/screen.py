"""Screen: the input and output of a conversation through a pipe; standard input as text."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, BinaryIO, Final

from akunu_py.cli.conversation import Turn
from akunu_py.cli.render import UNFINISHED, AnswerWriter
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.rounds import Finish

if TYPE_CHECKING:
    from akunu_py.engine import Engine

Warn = Callable[[Turn], str | None]
CONTEXT_FULL: Final = "The context is full; /reset starts over, and /save FILE keeps a copy."


class Screen:
    """A conversation through a pipe: a turn for each line, answers as plain text.

    As on a terminal, a backslash at the end of a line continues the turn on the next line. `read`
    returns None once the user has left. `complain` and `interrupted` raise, because the user of a
    pipe cannot react. `TerminalScreen` is the one for a terminal.
    """

    def __init__(self, loading: "Future[Engine]") -> None:
        self._loading = loading
        self._lines: Iterator[str] = read_lines()

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> str | None:
        for line in self._lines:
            said = line
            while said.endswith("\\") and (following := next(self._lines, None)) is not None:
                said = f"{said[:-1]}\n{following}"
            if said.strip():
                return said
        return None

    def await_model(self) -> "Engine":
        return self._loading.result()

    def progress(self, done: int, total: int) -> None:
        """Called on the worker's thread."""

    def show_turn(self, turn: Turn, *, show_drafts: bool, warning: Warn) -> None:
        """Shows the answer as it comes, and a warning below it, if there is one."""
        writer = AnswerWriter(sys.stdout, show_drafts=show_drafts)
        for event in turn:
            writer.write(event.pieces)
        writer.end_line()
        if found := warning(turn):
            self.notice(found)
        if turn.finish is Finish.LENGTH:
            self.notice(f"This answer is not complete: {UNFINISHED[turn.finish]}.")
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


def read_text() -> str:
    """All of standard input, unchanged; text that is not valid UTF-8 is refused."""
    return _decode(read_bytes(), "Standard input")


def read_bytes() -> bytes:
    """All of standard input."""
    return _standard_input().read()


def read_lines() -> Iterator[str]:
    """The lines of standard input as they arrive, without line ends; refuses what `read_text`
    refuses."""
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
