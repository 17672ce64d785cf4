"""Fill-in-the-middle: a piece of a file is cut out and asked for, in Qwen's token layout.

Prefix-suffix-middle: `<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>M<|endoftext|>`;
suffix-prefix-middle: `<|fim_prefix|><|fim_suffix|>S<|fim_middle|>PM<|endoftext|>`.
"""

import ast
import builtins
import keyword
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.training.copies import Alignment
from models.training.examples import END_OF_TEXT, Example, Segment

OPENING = 3
"""A filling's first tokens; they and its last are taught to look at the borders of the hole."""
MAX_PREFIX, MAX_SUFFIX, MAX_MIDDLE = 700, 350, 300  # characters
MIN_DEFINITION, MAX_DEFINITION = 60, 500  # characters of a definition that stands alone
_LONGEST_BODY = 7  # lines of a function whose body is asked for
_WORD = re.compile(r"[A-Za-z_]\w*")
_KNOWN = frozenset((*keyword.kwlist, *dir(builtins), "self", "cls"))
_HEADER = re.compile(r"^[ ]*(?:async def|def|class) .*:$", re.MULTILINE)
_ALONE = 0.6  # of holes are in a definition with nothing around it
_INDENTED = 0.75  # of lines of functions leave their indentation in front of the hole
_WITH_BREAK = 0.2  # of borders have their line break in the hole, as behind a cursor
_PREFIX_FIRST = 0.85


@dataclass(frozen=True)
class Hole:
    """A text with a piece cut out."""

    prefix: str
    middle: str
    suffix: str


Cut = Callable[[str, random.Random], Hole | None]


def prompt(prefix: str, suffix: str) -> str:
    """What a client sends for prefix-suffix-middle."""
    return f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"


def window(text: str, rng: random.Random) -> str:
    """Consecutive lines, at most as long as a prefix and a suffix together; or part of one line."""
    limit = rng.randint(200, MAX_PREFIX + MAX_SUFFIX)
    start = rng.randrange(max(1, len(text) - limit // 2))
    start = text.rfind("\n", 0, start) + 1
    end = text.rfind("\n", start, start + limit) + 1
    return text[start : end if end > start else start + limit]


def definition(text: str, rng: random.Random) -> str | None:
    """A short function or class, or the beginning of one, at indentation zero.

    Whoever tries a model out gives it no more than that.
    """
    headers = list(_HEADER.finditer(text))
    if not headers:
        return None
    header = rng.choice(headers)
    indentation = len(header.group()) - len(header.group().lstrip())
    limit = rng.randint(MIN_DEFINITION, MAX_DEFINITION)
    kept: list[str] = []
    for line in text[header.start() : header.start() + limit].split("\n")[:-1]:
        if kept and line.strip() and len(line) - len(line.lstrip()) <= indentation:
            break
        kept.append(line)
    found = textwrap.dedent("\n".join(kept)).rstrip("\n") + "\n"
    return found if len(found) >= MIN_DEFINITION else None


def told_lines(lines: list[str]) -> list[int]:
    """The rows of code whose every word stands in another row as well, or is Python's own.

    To fill such a line takes reading what is around it rather than knowing its author.
    """
    words = [Counter(_WORD.findall(line)) for line in lines]
    total = sum(words, Counter[str]())
    return [
        row
        for row, own in enumerate(words)
        if own
        and not lines[row].lstrip().startswith(("#", '"', "'"))
        and all(word in _KNOWN or total[word] > count for word, count in own.items())
    ]


def body_rows(lines: list[str]) -> list[int]:
    """The told lines of a function that are neither decorators nor part of its header."""
    function, begins = ast.parse("\n".join(lines)).body[0], 0
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        begins = function.body[0].lineno - 1
    return [row for row in told_lines(lines) if row >= max(1, begins)]


def line_hole(lines: list[str], row: int, *, indented: bool) -> Hole:
    """The line of that row cut out; its indentation stays in front if the hole is `indented`."""
    line = lines[row]
    keep = len(line) - len(line.lstrip()) if indented else 0
    before = "".join(f"{one}\n" for one in lines[:row])
    after = "".join(f"\n{one}" for one in lines[row + 1 :])
    return Hole(before + line[:keep], line[keep:], after)


def cut_line(text: str, rng: random.Random, *, told: bool = False) -> Hole | None:
    """One line that is not blank, or one of the told lines if there are any."""
    lines = text.split("\n")
    rows = told_lines(lines) if told else []
    rows = rows or [row for row, line in enumerate(lines) if line.strip()]
    return line_hole(lines, rng.choice(rows), indented=rng.random() < 0.5) if rows else None


def cut_told_line(text: str, rng: random.Random) -> Hole | None:
    """One of the told lines, or any where there are none."""
    return cut_line(text, rng, told=True)


def cut_rest_of_line(text: str, rng: random.Random) -> Hole | None:
    """From somewhere in a line to its end: what an editor asks for at the cursor."""
    hole = cut_told_line(text, rng)
    if hole is None or len(hole.middle) < 2:
        return None
    at = rng.randrange(1, len(hole.middle))
    return Hole(hole.prefix + hole.middle[:at], hole.middle[at:], hole.suffix)


def cut_block(text: str, rng: random.Random) -> Hole | None:
    """Two to eight whole lines."""
    lines = text.split("\n")
    if len(lines) < 5:
        return None
    start = rng.randrange(1, len(lines) - 2)
    end = min(len(lines) - 1, start + rng.randint(2, 8))
    before = "".join(f"{line}\n" for line in lines[:start])
    after = "".join(f"\n{line}" for line in lines[end:])
    return Hole(before, "\n".join(lines[start:end]), after)


def cut_anywhere(text: str, rng: random.Random) -> Hole | None:
    """Any stretch of characters."""
    if len(text) < 20:
        return None
    start = rng.randrange(len(text) - 10)
    end = min(len(text), start + rng.randint(1, 120))
    return Hole(text[:start], text[start:end], text[end:])


_CUTS: tuple[Cut, ...] = (
    *(cut_told_line, cut_told_line, cut_told_line, cut_line),
    *(cut_rest_of_line, cut_rest_of_line, cut_block, cut_anywhere),
)


def example(text: str, rng: random.Random) -> Example | None:
    """A definition or a window of `text` with a random hole, in either layout."""
    alone = definition(text, rng) if rng.random() < _ALONE else None
    hole = rng.choice(_CUTS)(alone or window(text, rng), rng)
    return _laid_out(with_breaks(hole, rng) if hole else None, rng)


def told_line_example(text: str, rng: random.Random) -> Example | None:
    """A whole function without one of its told lines, its header apart; None where it has none."""
    lines = f"{text}\n".split("\n")
    rows = body_rows(lines)
    if not rows:
        return None
    return _laid_out(line_hole(lines, rng.choice(rows), indented=rng.random() < _INDENTED), rng)


def body_hole(text: str) -> Hole | None:
    """A hole between the header of a short function and its last line; None for any other text."""
    first, *rest = text.rstrip().split("\n")
    if not first.endswith(":") or not 2 <= len(rest) <= _LONGEST_BODY:
        return None
    return Hole(first, "".join(f"\n{line}" for line in rest[:-1]), f"\n{rest[-1]}")


def body_example(text: str, rng: random.Random) -> Example | None:
    """A short function without its body; None for any other text."""
    return _laid_out(body_hole(text), rng)


def with_breaks(hole: Hole, rng: random.Random) -> Hole:
    """Now and then, a line break at either border moves from what is given into the hole."""
    prefix, middle, suffix = hole.prefix, hole.middle, hole.suffix
    if prefix.endswith("\n") and rng.random() < _WITH_BREAK:
        prefix, middle = prefix[:-1], f"\n{middle}"
    if suffix.startswith("\n") and rng.random() < _WITH_BREAK:
        middle, suffix = f"{middle}\n", suffix[1:]
    return Hole(prefix, middle, suffix)


def _laid_out(hole: Hole | None, rng: random.Random) -> Example | None:
    """A hole's surroundings and what fills it, in either layout."""
    if hole is None or not hole.middle.strip() or len(hole.middle) > MAX_MIDDLE:
        return None
    prefix, suffix = hole.prefix[-MAX_PREFIX:], hole.suffix[:MAX_SUFFIX]
    given = f"<|fim_suffix|>{suffix}<|fim_middle|>"
    if rng.random() < _PREFIX_FIRST:
        before = (Segment("<|fim_prefix|>", learned=False), Segment(prefix))
        return (*before, Segment(given, learned=False), Segment(hole.middle), Segment(END_OF_TEXT))
    marks = Segment(f"<|fim_prefix|>{given}", learned=False)
    return (marks, Segment(prefix + hole.middle), Segment(END_OF_TEXT))


def middle(learned: np.ndarray) -> slice:
    """The tokens that fill the hole of a prefix-suffix-middle example: its last learned run.

    Of a suffix-prefix-middle example, where prefix and middle are one run, nothing.
    """
    given = np.flatnonzero(~learned)
    last = int(given[-1]) if len(given) else 0
    return slice(last + 1 if learned[:last].any() else len(learned), len(learned))


def suffix(learned: np.ndarray) -> slice:
    """The tokens after the hole of a prefix-suffix-middle example, and of another nothing."""
    hole = middle(learned)
    if hole.start == hole.stop:
        return slice(len(learned), len(learned))
    given = np.flatnonzero(~learned[: hole.start])
    border = int(given[np.flatnonzero(np.diff(given) > 1)[-1] + 1])
    return slice(border + 1, hole.start - 1)


def borders(learned: np.ndarray) -> np.ndarray:
    """Which tokens decide how a hole is filled and where that ends: its first few and its end."""
    hole = middle(learned)
    decides = np.zeros(len(learned), dtype=np.bool_)
    decides[hole.start : min(hole.start + OPENING, hole.stop)] = True
    if hole.start < hole.stop:
        decides[-1] = True
    return decides


def align(learned: np.ndarray) -> Alignment:
    """Where a hole begins and ends, for the tokens at the borders of what fills it.

    Their `place` is the border of prefix and suffix, their `source` the suffix's first token.
    """
    alignment = Alignment.nowhere(len(learned))
    after, decides = suffix(learned), borders(learned)
    alignment.place[decides], alignment.source[decides] = after.start - 1, after.start
    return alignment
