"""Answers as they appear: plain text for a pipe; on a terminal, marked and harmless.

A model may write anything, terminal commands included. On a terminal every control character but
newline and tab is shown as a symbol; a pipe gets the text as it is.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from akunu_py.text.stream import Piece

_DELETE: Final = 0x7F
_CONTROL_PICTURES: Final = 0x2400  # U+2400 depicts 0x00, and so on
_SYMBOLS: Final = (
    {code: _CONTROL_PICTURES + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {_DELETE: 0x2421, ord("\r"): None}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)


def printable(text: str) -> str:
    """Text that a terminal can only display: control characters become symbols.

    Newlines and tabs stay; carriage returns go, since they come with a newline.
    """
    return text.translate(_SYMBOLS)


@dataclass(frozen=True)
class Palette:
    """The escape sequences for each kind of text; empty where there is nothing to mark it with."""

    dim: str = ""
    drafted: str = ""
    error: str = ""

    def paint(self, style: str, text: str) -> str:
        """The text in a style of this palette."""
        return f"{style}{text}\x1b[0m" if style and text else text


PLAIN: Final = Palette()
_MONOCHROME: Final = Palette(drafted="\x1b[4m")
_COLOURED: Final = Palette(dim="\x1b[2m", drafted="\x1b[32m", error="\x1b[31m")


def palette_for(stream: TextIO) -> Palette:
    """What a stream can show: nothing special unless it is a terminal; see no-color.org."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return PLAIN
    return _MONOCHROME if os.environ.get("NO_COLOR") else _COLOURED


class AnswerWriter:
    """Writes an answer to a stream as it grows.

    Args:
        stream: where to.
        show_drafts: whether to mark drafted pieces, where the stream can.
    """

    def __init__(self, stream: TextIO, *, show_drafts: bool = False) -> None:
        self._stream = stream
        self._palette = palette_for(stream)
        self._drafted_style = self._palette.drafted if show_drafts else ""
        self._harmless = stream.isatty()
        self._at_line_start = True

    def write(self, pieces: "Iterable[Piece]") -> None:
        """Shows the next pieces at once."""
        for drafted, group in groupby(pieces, key=lambda piece: piece.drafted):
            text = "".join(piece.text for piece in group)
            if not text:
                continue
            self._at_line_start = text.endswith("\n")
            if self._harmless:
                text = printable(text)
            self._stream.write(self._palette.paint(self._drafted_style if drafted else "", text))
        self._stream.flush()

    def end_line(self) -> None:
        """Begins a new line unless the answer just did."""
        if not self._at_line_start:
            self._stream.write("\n")
            self._stream.flush()
            self._at_line_start = True
