"""Edits of how code is written down: quotes, comments, indentation; plain copying; and diffs."""

import difflib
import random
import tokenize
from dataclasses import replace

from models.training.edits import bodies, names, signatures
from models.training.edits.base import (
    Edit,
    Lines,
    Pool,
    edit_of,
    has_multiline_string,
    phrase,
    tokens_of,
)
from models.training.functions import Function
from models.training.phrases import CHOICES

_TO_FOUR = 0.35  # of changes of indentation are to four spaces
_MAX_DIFF_LINES = 14
_DIFF_SOURCES = (
    bodies.replace_expression,
    bodies.insert_line,
    bodies.delete_line,
    bodies.guard,
    names.rename_variable,
    names.rename_function,
    signatures.add_default,
)


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
        if token.string[-1] != old:
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
    return edit_of(function, rng, "change_quotes", splices, kind=kind, other=other)


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
    return edit_of(function, rng, "drop_comments", kept) if kept != function.text else None


def change_indent(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """Four spaces a level to two spaces or a tab, where every line has whole levels; or back."""
    all_lines = function.text.split("\n")
    widths = [len(line) - len(line.lstrip(" ")) for line in all_lines]
    if has_multiline_string(function.text) or any(width % 4 for width in widths):
        return None
    what, unit = rng.choice((("two spaces", "  "), ("2 spaces", "  "), ("tabs", "\t")))
    pairs = zip(all_lines, widths, strict=True)
    other = "\n".join(unit * (width // 4) + line[width:] for line, width in pairs)
    if rng.random() < _TO_FOUR:
        edit = edit_of(function, rng, "change_indent: four", function.text)
        return replace(edit, before=other)
    return edit_of(function, rng, "change_indent: from four", other, what=what)


def repeat_code(function: Function, rng: random.Random, _pool: Pool) -> Edit | None:
    """The same code again."""
    return edit_of(function, rng, "repeat_code", function.text)


def apply_diff(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """A small unified diff of another edit: hunks with one line of context, no file header."""
    source = rng.choice(_DIFF_SOURCES)(function, rng, pool)
    if source is None:
        return None
    before, after = source.before.split("\n"), source.after.split("\n")
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    if not lines or len(lines) > _MAX_DIFF_LINES:
        return None
    words = phrase(rng, CHOICES["apply_diff"], diff="\n".join(lines))
    return replace(source, kind="apply_diff", instruction=words)
