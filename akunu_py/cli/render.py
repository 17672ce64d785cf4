"""Text for the user: answers as they grow, and the line of statistics after them.

A model may write anything, even terminal commands. So a terminal shows every control character
except newline and tab as a symbol; a pipe gets the text unchanged.
"""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, TextIO

from akunu_py.stats import Finish, Stats

if TYPE_CHECKING:
    from akunu_py.text.stream import Piece

_DELETE: Final = 0x7F
_CONTROL_PICTURES: Final = 0x2400  # U+2400 depicts 0x00, and so on
_SYMBOLS: Final = (
    {code: _CONTROL_PICTURES + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {_DELETE: 0x2421, ord("\r"): None}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)

_ENDINGS: Final = {
    Finish.LENGTH: "stopped at the token limit",
    Finish.CANCELLED: "interrupted",
    Finish.CONTEXT: "the context is full",
}


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters become symbols.

    Newlines and tabs stay; carriage returns are removed, since a newline follows them.
    """
    return text.translate(_SYMBOLS)


@dataclass(frozen=True)
class Palette:
    """The escape sequence for each kind of text; empty if the stream shows no styles."""

    dim: str = ""
    drafted: str = ""
    error: str = ""

    def paint(self, style: str, text: str) -> str:
        """The text in one of these styles."""
        return f"{style}{text}\x1b[0m" if style and text else text


PLAIN: Final = Palette()
_MONOCHROME: Final = Palette(drafted="\x1b[4m")
_COLOURED: Final = Palette(dim="\x1b[2m", drafted="\x1b[32m", error="\x1b[31m")


def palette_for(stream: TextIO) -> Palette:
    """The styles that a stream can show: none unless it is a terminal; see no-color.org."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return PLAIN
    return _MONOCHROME if os.environ.get("NO_COLOR") else _COLOURED


def tell(line: str) -> None:
    """Prints a line for the user to standard error."""
    palette = palette_for(sys.stderr)
    print(palette.paint(palette.dim, printable(line)), file=sys.stderr)


class AnswerWriter:
    """Writes an answer to a stream as it grows; marks drafted pieces if the stream shows styles."""

    def __init__(self, stream: TextIO, *, show_drafts: bool = False) -> None:
        self._stream = stream
        self._palette = palette_for(stream)
        self._drafted_style = self._palette.drafted if show_drafts else ""
        self._is_terminal = stream.isatty()
        self._at_line_start = True

    def write(self, pieces: "Iterable[Piece]") -> None:
        """Writes the next pieces and flushes them."""
        for drafted, group in groupby(pieces, key=lambda piece: piece.drafted):
            text = "".join(piece.text for piece in group)
            if not text:
                continue
            self._at_line_start = text.endswith("\n")
            if self._is_terminal:
                text = printable(text)
            self._stream.write(self._palette.paint(self._drafted_style if drafted else "", text))
        self._stream.flush()

    def end_line(self) -> None:
        """Ends the line, unless the answer ended it."""
        if not self._at_line_start:
            self._stream.write("\n")
            self._stream.flush()
            self._at_line_start = True


def stats_line(stats: Stats, finish: Finish | None = None) -> str:
    """Tokens, tokens per forward, acceptance, speed, and why the answer ended if not by itself.

    Tokens per forward include the token that ended the text, which a forward produced too. So
    plain decoding has 1.00.
    """
    facts = [count(stats.generated_tokens, "token")]
    if stats.generated_tokens:
        rounds = stats.target_forwards - stats.recheck_forwards
        computed = max(stats.generated_tokens, stats.accepted + rounds)
        facts.append(f"{computed / stats.target_forwards:.2f} per forward")
    if stats.drafted:
        facts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
    if stats.rechecked:
        facts.append(f"{count(stats.rechecked, 'near-tie')} decided again")
    if stats.decode_s:
        facts.append(f"{stats.tokens_per_s:,.0f} tokens/s")
    if finish in _ENDINGS:
        facts.append(_ENDINGS[finish])
    return " · ".join(facts)


def prompt_line(stats: Stats) -> str:
    """The tokens of the prompt, those that were cached, and how fast the others were computed."""
    facts = [f"prompt: {count(stats.prompt_tokens, 'token')}, {stats.cached_tokens:,} cached"]
    computed = stats.prompt_tokens - stats.cached_tokens
    if stats.prefill_s and computed:
        facts.append(f"{computed / stats.prefill_s:,.0f} tokens/s")
    return " · ".join(facts)


def count(number: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
