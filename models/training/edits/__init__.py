"""Mechanical edits of real functions, as a person would ask for them in a chat.

`KINDS` maps a kind to its maker and its weight in the training mix; `make` draws one edit,
`make_several` a few that follow on each other, `conversation` words them as chat turns. The
answer is always the whole edited code in one fenced block, and nothing else.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
import tokenize
from collections.abc import Sequence
from dataclasses import replace

from models.training.edits import bodies, diffs, layout, names, signatures
from models.training.edits.base import Edit, Maker, Pool, closed
from models.training.functions import Function, is_function

__all__ = [
    "KINDS",
    "Edit",
    "Pool",
    "beside",
    "conversation",
    "fenced",
    "is_sound",
    "make",
    "make_kind",
    "make_several",
    "pool_of",
]

KINDS: dict[str, tuple[Maker, float]] = {
    "rename_variable": (names.rename_variable, 8.0),
    "rename_function": (names.rename_function, 1.5),
    "rename_attribute": (names.rename_attribute, 2.5),
    "method_to_function": (names.method_to_function, 1.5),
    "function_to_method": (signatures.function_to_method, 1.5),
    "change_quotes": (layout.change_quotes, 2.5),
    "add_hint": (signatures.add_hint, 3.0),
    "drop_hints": (signatures.drop_hints, 1.5),
    "add_default": (signatures.add_default, 3.0),
    "drop_default": (signatures.drop_default, 3.5),
    "change_default": (signatures.change_default, 3.0),
    "add_parameter": (signatures.add_parameter, 1.0),
    "drop_parameter": (signatures.drop_parameter, 2.5),
    "make_async": (signatures.make_async, 0.3),
    "make_sync": (signatures.make_sync, 1.0),
    "decorate": (signatures.decorate, 0.5),
    "drop_decorator": (signatures.drop_decorator, 2.5),
    "wrap_in_try": (bodies.wrap_in_try, 1.5),
    "add_docstring": (bodies.add_docstring, 1.5),
    "drop_docstring": (bodies.drop_docstring, 1.0),
    "guard": (bodies.guard, 1.5),
    "insert_line": (bodies.insert_line, 8.0),
    "delete_line": (bodies.delete_line, 4.0),
    "replace_expression": (bodies.replace_expression, 9.0),
    "drop_comments": (layout.drop_comments, 8.0),
    "change_indent": (layout.change_indent, 1.5),
    "repeat_code": (layout.repeat_code, 0.5),
    "apply_diff": (diffs.apply_diff, 3.0),
}
_OF_A_PLACE = frozenset(
    (
        *("rename_variable", "rename_function", "rename_attribute", "add_hint", "add_default"),
        *(
            "change_default",
            "drop_parameter",
            "drop_default",
            "guard",
            "insert_line",
            "delete_line",
            "replace_expression",
        ),
    )
)
"""Kinds that can leave other functions of the same code as they are."""
_QUOTED = re.compile(r"`([^`]+)`")
SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are a coding assistant.", "Edit code.")


def pool_of(functions: Sequence[Function], *, limit: int = 4000) -> Pool:
    """Names and short expressions of some functions, each once, in a fixed order."""
    found_names: dict[str, None] = {}
    expressions: dict[str, None] = {}
    for function in functions[:limit]:
        for node in ast.walk(function.node):
            if isinstance(node, ast.Name | ast.arg):
                name = node.id if isinstance(node, ast.Name) else node.arg
                if name.islower() and 1 < len(name) <= 16:
                    found_names[name] = None
            elif isinstance(node, ast.Call | ast.Attribute | ast.Compare | ast.Constant):
                segment = ast.unparse(node)
                if len(segment) <= 30 and "\n" not in segment and "`" not in segment:
                    expressions[segment] = None
    return Pool(tuple(found_names), tuple(expressions))


def is_sound(edit: Edit) -> bool:
    """True where both sides parse and the edit changes something (copying aside)."""
    changed = edit.before != edit.after or edit.kind == "repeat_code"
    try:
        ast.parse(textwrap.dedent(edit.before))
        ast.parse(textwrap.dedent(edit.after))
    except (SyntaxError, ValueError):
        return False
    return changed


def make_kind(kind: str, function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An edit of one kind, or None where the function does not lend itself to it."""
    try:
        edit = KINDS[kind][0](function, rng, pool)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
    return edit if edit is not None and is_sound(edit) else None


def make(function: Function, rng: random.Random, pool: Pool, *, attempts: int = 4) -> Edit | None:
    """An edit of a kind drawn by weight, or None after some attempts."""
    weights = [weight for _, weight in KINDS.values()]
    for kind in rng.choices(list(KINDS), weights, k=attempts):
        edit = make_kind(kind, function, rng, pool)
        if edit is not None:
            return edit
    return None


def make_several(function: Function, rng: random.Random, pool: Pool, *, most: int) -> list[Edit]:
    """Edits of which each goes on from the code that the one before it made; at most `most`."""
    made: list[Edit] = []
    while len(made) < most:
        edit = make(function, rng, pool)
        if edit is None or (made and edit.before != function.text):
            break
        made.append(edit)
        if not is_function(edit.after):
            break
        function = replace(function, text=edit.after)
    return made


def beside(edit: Edit, other: Function, rng: random.Random) -> Edit | None:
    """The edit in code where another function stands in front or behind, which stays as it is.

    None where the request does not tell which of the two it is about.
    """
    quoted = _QUOTED.findall(edit.instruction)
    whole = [rf"(?<!\w){re.escape(text)}(?!\w)" for text in quoted]
    told = any(re.search(text, edit.before) for text in whole)
    told = told and "return" not in edit.instruction  # a type or value of that names no place
    if edit.kind not in _OF_A_PLACE or not told or any(text in other.text for text in quoted):
        return None
    gap = "\n\n\n"
    before, after = rng.choice(((f"{other.text}{gap}", ""), ("", f"{gap}{other.text}")))
    return replace(
        edit, before=f"{before}{edit.before}{after}", after=f"{before}{edit.after}{after}"
    )


def fenced(code: str, language: str = "python") -> str:
    """The code in a fenced block."""
    return f"```{language}\n{code}\n```"


def conversation(edits: Sequence[Edit], rng: random.Random) -> list[tuple[str, str]]:
    """Chat turns (role, content): each request, then its answer.

    The first request brings the code, in one of several layouts.
    """
    first = edits[0]
    instruction, code = first.instruction, fenced(first.before)
    whole = closed(instruction)
    layouts = (
        f"{instruction}:\n{code}",
        f"{instruction}:\n{code}",
        f"{instruction}:\n\n{code}",
        f"{whole}.\n{code}",
        f"{whole}.\n\n{code}",
        f"{code}\n\n{whole}.",
        f"{instruction}:\n\n{first.before}",
    )
    turns = [("user", rng.choice(layouts)), ("assistant", fenced(first.after))]
    for edit in edits[1:]:
        turns += [("user", f"{closed(edit.instruction)}."), ("assistant", fenced(edit.after))]
    if rng.random() < 0.1:
        turns.insert(0, ("system", rng.choice(SYSTEM_PROMPTS)))
    return turns
