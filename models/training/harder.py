"""Functions made harder to copy: with lines much like others of theirs, or with comments.

Where a function repeats itself, a few tokens do not tell which of the similar lines an answer has
come to: only what stands further before them does. Real functions of some length are like that, and
most wrong answers about them begin there; short ones made so teach it at a third of the length.
To leave out comments takes finding the next line behind them, and few real functions have many.
"""

from __future__ import annotations

import ast
import keyword
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from models.training.functions import MAX_LINE_LENGTH, MAX_LINES, Function, is_function

_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_MOST_PLACES, _MOST_COPIES = 5, 3
_BEHIND_IT = 0.6
"""How often a line's copies follow it; the others stand anywhere at the same indentation."""
_SAME = 0.2
"""How often a copy is the same line once more."""
_COMMENT = re.compile(r"^ *# ?(\w.*)$", re.MULTILINE)
_MOST_COMMENTED, _MOST_LINES = 4, 3
_BEHIND_CODE, _OF_CODE = 0.25, 0.25
"""How often a comment stands behind code, and how often its words are a line of the function."""


def with_similar_lines(function: Function, rng: random.Random) -> Function:
    """The function with copies of a few of its lines, in most of which one word is another.

    It still parses, and means nothing. Lines that cannot be repeated are left alone.
    """
    lines = function.text.split("\n")
    words = [word for word in _WORD.findall(function.text) if not keyword.iskeyword(word)]
    for _ in range(rng.randint(2, _MOST_PLACES)):
        at = rng.randrange(len(lines))
        if not lines[at].startswith(" ") or lines[at].lstrip()[0] in "\"'":
            continue  # the header, or a docstring
        indented = [
            i for i, line in enumerate(lines) if line and _indent(line) == _indent(lines[at])
        ]
        copies = [_varied(lines[at], words, rng) for _ in range(rng.randint(1, _MOST_COPIES))]
        behind = at if rng.random() < _BEHIND_IT else rng.choice(indented)
        longer = [*lines[: behind + 1], *copies, *lines[behind + 1 :]]
        if len(longer) <= MAX_LINES and is_function("\n".join(longer)):
            lines = longer
    return replace(function, text="\n".join(lines))


def comments_of(functions: Iterable[Function]) -> list[str]:
    """The words of comments on lines of their own that begin with a letter or a digit."""
    return [words for function in functions for words in _COMMENT.findall(function.text)]


def with_comments(function: Function, comments: Sequence[str], rng: random.Random) -> Function:
    """The function with comments in front of a few of its statements, or behind them."""
    lines = function.text.split("\n")
    code = [s for line in lines if (s := line.strip()) and s[0] not in "#\"'"]
    begin = function.node.lineno
    whole = {
        statement.lineno - 1: statement.lineno == statement.end_lineno
        for one in function.node.body[ast.get_docstring(function.node) is not None :]
        for statement in ast.walk(one)
        if isinstance(statement, ast.stmt) and statement.lineno > begin
    }
    count = min(len(whole), rng.randint(1, _MOST_COMMENTED))
    for row in sorted(rng.sample(sorted(whole), count), reverse=True):
        behind = whole[row] and rng.random() < _BEHIND_CODE
        said = [
            rng.choice(code) if rng.random() < _OF_CODE else rng.choice(comments)
            for _ in range(1 if behind else rng.randint(1, _MOST_LINES))
        ]
        indent = " " * _indent(lines[row])
        added = [f"{lines[row]}  # {said[0]}"] if behind else [*(f"{indent}# {s}" for s in said)]
        longer = [*lines[:row], *added, *lines[row + behind :]]
        fits = len(longer) <= MAX_LINES and max(map(len, added)) <= MAX_LINE_LENGTH
        if fits and is_function("\n".join(longer)):
            lines = longer
    return replace(function, text="\n".join(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _varied(line: str, words: list[str], rng: random.Random) -> str:
    """The line with one of its words exchanged, as a rule."""
    found = [word for word in _WORD.finditer(line) if not keyword.iskeyword(word[0])]
    if not found or rng.random() < _SAME:
        return line
    old = rng.choice(found)
    number = old[0].isdigit()
    new = str(rng.randrange(20)) if number else rng.choice([w for w in words if not w[0].isdigit()])
    return f"{line[: old.start()]}{new}{line[old.end() :]}"
