"""Small unified diffs to apply, made from other edits."""

from __future__ import annotations

import difflib
import random

from models.training.edits import bodies, names, signatures
from models.training.edits.base import Edit, Maker, Pool, phrase
from models.training.functions import Function

MAX_DIFF_LINES = 14
_SOURCES: tuple[Maker, ...] = (
    bodies.replace_expression,
    bodies.insert_line,
    bodies.delete_line,
    bodies.guard,
    names.rename_variable,
    names.rename_function,
    signatures.add_default,
)
_APPLY = (
    "Apply this diff to {it}:\n```diff\n{diff}\n```\nThe code",
    "Apply the diff\n```diff\n{diff}\n```\nto",
    "Apply this patch:\n```diff\n{diff}\n```\nto",
)


def apply_diff(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """Hunks with one line of context, without a file header."""
    source = rng.choice(_SOURCES)(function, rng, pool)
    if source is None:
        return None
    before, after = source.before.split("\n"), source.after.split("\n")
    lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
    diff = "\n".join(lines)
    if not lines or len(lines) > MAX_DIFF_LINES:
        return None
    return Edit("apply_diff", phrase(rng, _APPLY, diff=diff), source.before, source.after)
