"""Fill-in-the-middle: a piece of a file is cut out and asked for, in Qwen's token layout.

Prefix-suffix-middle: `<|fim_prefix|>P<|fim_suffix|>S<|fim_middle|>M<|endoftext|>`;
suffix-prefix-middle: `<|fim_prefix|><|fim_suffix|>S<|fim_middle|>PM<|endoftext|>`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from models.training.copies import Alignment
from models.training.examples import END_OF_TEXT, Example, Segment

OPENING = 3
"""The tokens of a filling that are taught to look at the borders of the hole."""
MAX_PREFIX, MAX_SUFFIX, MAX_MIDDLE = 700, 350, 300


@dataclass(frozen=True)
class Hole:
    """A text with a piece cut out."""

    prefix: str
    middle: str
    suffix: str


def prompt(prefix: str, suffix: str) -> str:
    """What a client sends for prefix-suffix-middle."""
    return f"<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"


def window(text: str, rng: random.Random) -> str:
    """Some consecutive whole lines, at most as long as prefix, middle and suffix together."""
    limit = rng.randint(200, MAX_PREFIX + MAX_SUFFIX)
    start = rng.randrange(max(1, len(text) - limit // 2))
    start = text.rfind("\n", 0, start) + 1
    end = text.rfind("\n", start, start + limit) + 1
    return text[start : end if end > start else start + limit]


def cut_line(text: str, rng: random.Random) -> Hole | None:
    """One line that is not blank; its indentation stays in front or goes with it."""
    lines = text.split("\n")
    filled = [row for row, line in enumerate(lines) if line.strip()]
    if not filled:
        return None
    row = rng.choice(filled)
    prefix = "".join(f"{line}\n" for line in lines[:row])
    line = lines[row]
    keep = len(line) - len(line.lstrip()) if rng.random() < 0.5 else 0
    suffix = "".join(f"\n{line}" for line in lines[row + 1 :])
    return Hole(prefix + line[:keep], line[keep:], suffix)


def cut_rest_of_line(text: str, rng: random.Random) -> Hole | None:
    """From somewhere in a line to its end: what an editor asks for at the cursor."""
    hole = cut_line(text, rng)
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
    return Hole(
        "".join(f"{line}\n" for line in lines[:start]),
        "\n".join(lines[start:end]),
        "".join(f"\n{line}" for line in lines[end:]),
    )


def cut_anywhere(text: str, rng: random.Random) -> Hole | None:
    """Any stretch of characters."""
    if len(text) < 20:
        return None
    start = rng.randrange(len(text) - 10)
    end = min(len(text), start + rng.randint(1, 120))
    return Hole(text[:start], text[start:end], text[end:])


Cut = Callable[[str, random.Random], Hole | None]

_CUTS: tuple[Cut, ...] = (cut_line, cut_line, cut_rest_of_line, cut_block, cut_anywhere)


def example(text: str, rng: random.Random) -> Example | None:
    """A random window of `text` with a random hole, in either layout."""
    hole = rng.choice(_CUTS)(window(text, rng), rng)
    if hole is None or not hole.middle.strip() or len(hole.middle) > MAX_MIDDLE:
        return None
    prefix, suffix = hole.prefix[-MAX_PREFIX:], hole.suffix[:MAX_SUFFIX]
    if rng.random() < 0.7:
        return (
            Segment("<|fim_prefix|>", learned=False),
            Segment(prefix),
            Segment(f"<|fim_suffix|>{suffix}<|fim_middle|>", learned=False),
            Segment(hole.middle),
            Segment(END_OF_TEXT),
        )
    return (
        Segment(f"<|fim_prefix|><|fim_suffix|>{suffix}<|fim_middle|>", learned=False),
        Segment(prefix + hole.middle),
        Segment(END_OF_TEXT),
    )


def middle(learned: np.ndarray) -> slice:
    """The tokens that fill the hole of a prefix-suffix-middle example: its last learned run.

    Of a suffix-prefix-middle example, where prefix and middle are one run, nothing.
    """
    given = np.flatnonzero(~learned)
    last = int(given[-1]) if len(given) else 0
    return slice(last + 1 if learned[:last].any() else len(learned), len(learned))


def align(learned: np.ndarray) -> Alignment:
    """Where a hole begins and ends, for the first tokens that fill it.

    Their `place` is the border of prefix and suffix, their `source` the suffix's first token.
    """
    alignment = Alignment.nowhere(len(learned))
    hole = middle(learned)
    given = np.flatnonzero(~learned[: hole.start])
    border = int(given[np.flatnonzero(np.diff(given) > 1)[-1] + 1]) if hole.start < hole.stop else 0
    first = slice(hole.start, min(hole.start + OPENING, hole.stop))
    alignment.place[first], alignment.source[first] = border, border + 1
    return alignment
