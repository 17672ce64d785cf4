"""Edits of how code is written down: quotes, comments, indentation; and plain copying."""

from __future__ import annotations

import random
import tokenize

from models.training.edits.base import (
    Edit,
    Lines,
    Pool,
    has_multiline_string,
    phrase,
    spliced,
    tokens_of,
)
from models.training.functions import Function
from models.training.phrases import official


def change_quotes(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """Every plain string from one kind of quote to the other; none where that needs escapes."""
    lines = Lines(function.text)
    to_double = rng.random() < 0.6
    old, new = ("'", '"') if to_double else ('"', "'")
    if any(f"{prefix}{old}" in function.text for prefix in "fF"):
        return None
    splices = []
    for token in tokens_of(function.text):
        if token.type != tokenize.STRING or token.string.startswith(('"""', "'''")):
            continue
        quote = token.string[-1]
        if quote != old:
            continue
        inner = token.string[token.string.index(old) + 1 : -1]
        if any(character in inner for character in "'\"\\"):
            return None
        end = lines.offset(*token.end)
        first = end - len(inner) - 2
        splices += [(first, first + 1, new), (end - 1, end, new)]
    if not splices:
        return None
    kind, other = ("double", "single") if to_double else ("single", "double")
    words = phrase(rng, official("change_quotes"), kind=kind, other=other)
    return Edit("change_quotes", words, function.text, spliced(function.text, splices))


def drop_comments(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """No comments; a line that held nothing else goes as well."""
    all_lines = function.text.split("\n")
    dropped = set()
    for token in tokens_of(function.text):
        if token.type == tokenize.COMMENT:
            row, column = token.start[0] - 1, token.start[1]
            all_lines[row] = all_lines[row][:column].rstrip()
            if not all_lines[row]:
                dropped.add(row)
    kept = "\n".join(line for row, line in enumerate(all_lines) if row not in dropped)
    if kept == function.text:
        return None
    return Edit("drop_comments", phrase(rng, official("drop_comments")), function.text, kept)


_TO_FOUR = 0.35
"""How many changes of indentation are to four spaces."""


def change_indent(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """Four spaces a level to two spaces or a tab, where every line has whole levels; or back."""
    all_lines = function.text.split("\n")
    widths = [len(line) - len(line.lstrip(" ")) for line in all_lines]
    if has_multiline_string(function.text) or any(width % 4 for width in widths):
        return None
    what, unit = rng.choice((("two spaces", "  "), ("2 spaces", "  "), ("tabs", "\t")))
    pairs = zip(all_lines, widths, strict=True)
    after = "\n".join(unit * (width // 4) + line[width:] for line, width in pairs)
    if rng.random() < _TO_FOUR:
        words = phrase(rng, official("change_indent: four"))
        return Edit("change_indent", words, after, function.text)
    words = phrase(rng, official("change_indent: from four"), what=what)
    return Edit("change_indent", words, function.text, after)


def repeat_code(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The same code again."""
    return Edit("repeat_code", phrase(rng, official("repeat_code")), function.text, function.text)
