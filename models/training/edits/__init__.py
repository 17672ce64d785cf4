"""Mechanical edits of real functions, as a person would ask for them in a chat.

`KINDS` maps a kind to its weight in the training mix; `make` draws one edit, `make_several` a few
that follow on each other, `conversation` words them as chat turns. The answer is always the whole
edited code in one fenced block, and nothing else.
"""

import ast
import random
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from models.training.edits import bodies, layout, names, signatures
from models.training.edits.base import Edit, Pool, closed
from models.training.functions import Function, is_function, parses
from models.training.phrases import CHOICES

__all__ = ["KINDS", "Edit", "Pool", "conversation", "fenced", "make_kind", "make_several"]

KINDS: Mapping[str, float] = CHOICES["real_edits"]
_MAKERS: dict[str, Callable[[Function, random.Random, Pool], Edit | None]] = {
    kind: getattr(module, kind)
    for kind in KINDS
    for module in (names, signatures, bodies, layout)
    if kind in vars(module)
}
_QUOTED = re.compile(r"`([^`]+)`")
_ATTEMPTS = 4


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
    if not (parses(edit.before) and parses(edit.after)):
        return False
    return edit.before != edit.after or edit.kind == "repeat_code"


def make_kind(kind: str, function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An edit of one kind, or None where the function does not lend itself to it."""
    try:
        edit = _MAKERS[kind](function, rng, pool)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
    return edit if edit is not None and is_sound(edit) else None


def make(function: Function, rng: random.Random, pool: Pool) -> Edit | None:
    """An edit of a kind drawn by weight, or None after some attempts."""
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=_ATTEMPTS)
    return next(filter(None, (make_kind(kind, function, rng, pool) for kind in kinds)), None)


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
    told = any(whole(text).search(edit.before) for text in quoted)
    told = told and "return" not in edit.instruction  # a type or value of that names no place
    has_a_place = edit.kind in CHOICES["edit_places"]
    if not has_a_place or not told or any(text in other.text for text in quoted):
        return None
    gap = "\n\n\n"
    before, after = rng.choice(((f"{other.text}{gap}", ""), ("", f"{gap}{other.text}")))
    return replace(
        edit, before=f"{before}{edit.before}{after}", after=f"{before}{edit.after}{after}"
    )


def whole(text: str) -> re.Pattern[str]:
    """Finds the text where it is not a part of a longer word."""
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def fenced(code: str) -> str:
    """The code in a fenced block."""
    return f"```python\n{code}\n```"


def conversation(edits: Sequence[Edit], rng: random.Random) -> list[tuple[str, str]]:
    """Chat turns (role, content): each request, then its answer.

    The first request brings the code, in one of several layouts.
    """
    first = edits[0]
    words = {"instruction": first.instruction, "whole": closed(first.instruction)}
    code = {"code": fenced(first.before), "plain": first.before}
    request = rng.choice(CHOICES["edit_layouts"]).format(**words, **code)
    turns = [("user", request), ("assistant", fenced(first.after))]
    for edit in edits[1:]:
        turns += [("user", f"{closed(edit.instruction)}."), ("assistant", fenced(edit.after))]
    if rng.random() < 0.1:
        turns.insert(0, ("system", rng.choice(CHOICES["system_prompts"])))
    return turns
