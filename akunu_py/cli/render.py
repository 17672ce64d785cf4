"""What the user sees: growing answers, lines of statistics, and progress bars.

A model may write anything, even terminal commands. So a terminal shows every control character
except newline and tab as a symbol; a pipe gets the text unchanged.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter
from typing import TYPE_CHECKING, Final, Self, TextIO
from unicodedata import category, east_asian_width

from akunu_py.rounds import Finish, Stats
from akunu_py.tokens import Origin

if TYPE_CHECKING:
    from rich.progress import Progress

    from akunu_py.text.stream import Piece

_DELETE: Final = 0x7F
_CONTROL_PICTURES: Final = 0x2400  # U+2400 depicts 0x00, and so on
_SYMBOLS: Final = (
    {code: _CONTROL_PICTURES + code for code in range(0x20) if chr(code) not in "\n\t"}
    | {_DELETE: 0x2421, ord("\r"): None}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
)

_FENCE: Final = re.compile(r" *(`{3,}|~{3,})([^`]*)")
_PARTS: Final = re.compile(
    "(\\s|[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60])"
)
"""Lines may break at these: spaces, and the wide characters of East Asian scripts."""
_LONG_PROMPT: Final = 4096
_LONG_WAIT_S: Final = 1.0
_NO_WIDTH: Final = frozenset(("Mn", "Me", "Cf"))
_NEARLY_FULL: Final = 0.75
UNFINISHED: Final = {
    Finish.LENGTH: "stopped at the token limit",
    Finish.CANCELLED: "interrupted",
    Finish.CONTEXT: "the context is full",
}
"""Why an answer ended, if the model did not end it."""


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters except newlines and tabs become symbols;
    carriage returns are removed, because a newline follows them."""
    return text.translate(_SYMBOLS)


def on_one_line(name: str) -> str:
    """The same for a name, in which line ends and tabs become symbols, too."""
    return name.translate(_SYMBOLS | {code: _CONTROL_PICTURES + code for code in b"\t\n\r"})


@dataclass(frozen=True)
class Palette:
    """The escape sequence of each style; empty if the stream shows no styles."""

    dim: str = ""
    added: str = ""
    drafted: Mapping[Origin, str] = field(default_factory=dict)
    error: str = ""

    def paint(self, style: str, text: str) -> str:
        return f"{style}{text}\x1b[0m" if style and text else text


PLAIN: Final = Palette()
_DRAFTED: Final = {origin: "\x1b[32m" for origin in Origin if origin} | {
    Origin.HEAD: "\x1b[36m",
    Origin.MODEL: "\x1b[36m",
    Origin.MEMORY: "\x1b[34m",
}
_MONOCHROME: Final = Palette(drafted=dict.fromkeys(_DRAFTED, "\x1b[4m"))
_COLOURED: Final = Palette(dim="\x1b[2m", added="\x1b[32m", drafted=_DRAFTED, error="\x1b[31m")


def palette_for(stream: TextIO) -> Palette:
    """The styles that a stream shows: none if it is not a terminal, few with NO_COLOR."""
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return PLAIN
    return _MONOCHROME if os.environ.get("NO_COLOR") else _COLOURED


def tell(line: str) -> None:
    """Prints a line for the user to standard error."""
    palette = palette_for(sys.stderr)
    print(palette.paint(palette.dim, printable(line)), file=sys.stderr)


def columns_of(stream: TextIO) -> int | None:
    """The width of a terminal; None for any other stream."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None


def width(text: str) -> int:
    """How many columns a text takes on a terminal."""
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(category(character) in _NO_WIDTH for character in text)


def wrapped(text: str, columns: int | None) -> str:
    """A text with line breaks between words, for a terminal of this width."""
    lines: list[str] = []
    for line in text.split("\n"):
        shown, *words = line.split(" ")
        for word in words:
            if columns and width(f"{shown} {word}") > columns:
                lines.append(shown)
                shown = word
            else:
                shown = f"{shown} {word}"
        lines.append(shown)
    return "\n".join(lines)


class AnswerWriter:
    """Writes an answer to a stream as it grows; marks drafted pieces if the stream shows styles.

    With `wrap`, prose is broken between words; the terminal itself would break lines anywhere. A
    word is held back until it is complete, with the space before it. Code lines are not wrapped.
    """

    def __init__(self, stream: TextIO, *, show_drafts: bool = False, wrap: bool = False) -> None:
        self._stream = stream
        self._palette = palette_for(stream)
        self._styles = self._palette.drafted if show_drafts else {}
        self._is_terminal = stream.isatty()
        self._columns = columns_of(stream) if wrap else None
        self._line, self._column = "", 0  # the whole line of the answer; where the terminal is
        self._fence = ""  # the marks that opened a block of code
        self._indents = True  # the line has only spaces so far
        self._held: list[tuple[str, Origin]] = []
        self._held_width = 0
        self._ready: list[tuple[str, Origin]] = []

    def write(self, pieces: "Iterable[Piece]") -> None:
        for piece in pieces:
            text = printable(piece.text) if self._is_terminal else piece.text
            if self._columns is None:
                self._send(text, piece.drafted)
                continue
            for part in filter(None, _PARTS.split(text)):
                self._take(part, self._columns, piece.drafted)
        self._show()

    def end_line(self) -> None:
        self._end_word()
        if self._line:
            self._send("\n", Origin.NONE)
        self._show()

    @property
    def _is_code(self) -> bool:
        return bool(self._fence) or self._line.startswith(("    ", "\t"))

    def _take(self, part: str, columns: int, drafted: Origin) -> None:
        if _PARTS.fullmatch(part):
            self._end_word()
        if part == "\n" or (part == " " and self._indents) or (self._line and self._is_code):
            self._end_word()
            self._send(part, drafted)
            return
        self._held.append((part, drafted))
        self._held_width += max(width(part), 1)
        if self._held_width >= columns:
            self._end_word()

    def _end_word(self) -> None:
        held, self._held, self._held_width = self._held, [], 0
        text = "".join(part for part, _ in held)
        fits = self._columns is None or self._column + width(text) <= self._columns
        if not fits and self._column and _PARTS.match(text) and not self._is_code:
            held = [(part, drafted) for part, drafted in held if not part.isspace()]
            if held:
                self._ready.append(("\n", held[0][1]))
                self._column = 0
        for part, drafted in held:
            self._send(part, drafted)

    def _send(self, text: str, drafted: Origin) -> None:
        if not text:
            return
        self._ready.append((text, drafted))
        *ended, rest = text.split("\n")
        for end in ended:
            self._fence = _fence_after(self._line + end, self._fence)
            self._line, self._column, self._indents = "", 0, True
        self._line += rest
        self._column += width(rest)
        self._indents = self._indents and not rest.strip(" ")

    def _show(self) -> None:
        ready, self._ready = self._ready, []
        for drafted, group in groupby(ready, key=lambda part: part[1]):
            style = self._styles.get(drafted, "")
            self._stream.write(self._palette.paint(style, "".join(text for text, _ in group)))
        self._stream.flush()


def _fence_after(line: str, fence: str) -> str:
    """The fence of the code block that is open after a line, as in CommonMark; empty if none is."""
    found = _FENCE.fullmatch(line)
    if not fence:
        return found[1] if found else ""
    closes = found and not found[2].strip() and found[1].startswith(fence)
    return "" if closes else fence


class ProgressBar:
    """A progress bar; call it with the work done and the work in total.

    It appears with the first call if the stream is a terminal, and disappears when it is closed.
    `counts` shows the work as numbers too. A `patient` bar appears only for long work, and
    disappears when all is done.
    """

    def __init__(
        self, stream: TextIO, title: str, *, counts: bool = False, patient: bool = False
    ) -> None:
        self._stream = stream
        self._title = title
        self._counts = counts
        self._patient = patient
        self._bar: Progress | None = None
        self._started: float | None = None

    def __call__(self, done: float, total: float) -> None:
        if self._patient and done >= total:
            self.close()
            return
        self._started = self._started or perf_counter()
        waited = perf_counter() - self._started
        brief = self._patient and total <= _LONG_PROMPT and waited <= _LONG_WAIT_S
        if brief or not self._stream.isatty():
            return
        if self._bar is None:
            self._bar = _start_bar(self._stream, self._title, total, counts=self._counts)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def close(self) -> None:
        self._started = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prefill_bar(stream: TextIO) -> ProgressBar:
    """A bar for the tokens of a prompt, if they take long."""
    return ProgressBar(stream, "reading the prompt", counts=True, patient=True)


def _start_bar(stream: TextIO, title: str, total: float, *, counts: bool) -> "Progress":
    from rich.console import Console  # noqa: PLC0415  (most waits are short)
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = [TextColumn(title), BarColumn(), *([MofNCompleteColumn()] if counts else [])]
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(file=stream), transient=True)
    bar.add_task("", total=total)
    bar.start()
    return bar


def stats_line(stats: Stats, finish: Finish | None = None, context_limit: int = 0) -> str:
    """Tokens, the speedup by drafts or else tokens per forward pass, acceptance rate, speed, and
    why the answer was cut, if it was.

    The token that ended the text counts too, so plain decoding has 1.00 tokens per pass. With a
    `context_limit`, the line also says when the context is nearly full.
    """
    facts = [count(stats.generated_tokens, "token")]
    if stats.generated_tokens:
        computed = max(stats.generated_tokens, stats.accepted + stats.target_forwards)
        facts.append(gain(stats) or f"{computed / stats.target_forwards:.2f} tokens per pass")
    if stats.drafted:
        facts.append(f"{stats.acceptance_rate:.0%} of drafts accepted")
    if stats.decode_s:
        facts.append(f"{stats.tokens_per_s:,.0f} tokens/s")
    used = (stats.prompt_tokens + stats.generated_tokens) / context_limit if context_limit else 0
    if used >= _NEARLY_FULL:
        facts.append(f"context {used:.0%} full")
    if finish in UNFINISHED:
        facts.append(UNFINISHED[finish])
    return " · ".join(facts)


def origins(stats: Stats) -> str:
    """The accepted ones of the draft tokens of each origin."""
    return "; ".join(
        f"{origin}: {found['accepted']:,} of {found['drafted']:,}"
        for origin, found in stats.drafts.items()
    )


def gain(stats: Stats) -> str:
    """How much faster drafts made an answer; empty if they did not, or the costs are unknown."""
    times = f"{stats.speedup or 0.0:.1f}"
    return f"{times} times as fast as without drafts" if float(times) > 1 else ""


def prompt_line(stats: Stats) -> str:
    """The tokens of the prompt, how many were cached, and how fast the others were computed."""
    facts = [f"prompt: {count(stats.prompt_tokens, 'token')}, {stats.cached_tokens:,} cached"]
    computed = stats.prompt_tokens - stats.cached_tokens
    if stats.prefill_s and computed:
        facts.append(f"{computed / stats.prefill_s:,.0f} tokens/s")
    return " · ".join(facts)


def count(number: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
