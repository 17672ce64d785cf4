"""Requests that are made of edits: for two at once, and with a mistake that is put right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.training import edits, short_edits, wordings
from models.training.edits import Edit
from models.training.edits.base import closed
from models.training.functions import Function, is_function
from models.training.invented import Inventor

_ALONE = frozenset(
    ("apply_diff", "repeat_code", "change_indent", "function_to_method", "drop_parameter")
)
"""Kinds that are not asked for together with another one."""
TOGETHER = 0.07
"""How many requests are for two edits at once."""
_JOINED = (
    *("{} and {}", "{} and {}", "{}, and {}", "{}, then {}", "{} and then {}", "{} and also {}"),
    *("{}, also {}", "first {}, then {}", "{} + {}", "{}; {}", "{}. {}", "{}. Then {}"),
)
_VALUES, _TYPES = ("None", "True", "False"), ("int", "str", "float", "bool", "list", "dict")
_QUOTED, _WORD = re.compile(r"`([^`]+)`"), re.compile(r"\w+")


def two_at_once(
    first_kind: str, first: Edit, inventor: Inventor, *, is_method: bool = False
) -> tuple[Edit, str] | None:
    """An edit combined with a second edit of its result, and a request for both.

    None if the second edit is about something that the first one added or removed, or if the two
    requests cannot be joined in one sentence.
    """
    if first_kind in _ALONE or not is_function(first.after):
        return None
    (kind,) = inventor.rng.choices(list(short_edits.KINDS), list(short_edits.KINDS.values()))
    # After the rename, the docstring would still have the old name.
    is_stale = first_kind == short_edits.DESCRIBE and kind.startswith("rename")
    if kind in _ALONE or is_stale or _concerns(kind) == _concerns(first_kind):
        return None
    second = short_edits.make(kind, Function(first.after, is_method, ""), inventor)
    if second is None or short_edits.PLACED.search(f"{first.instruction}\n{second.instruction}"):
        return None
    changed = set(_WORD.findall(first.before)) ^ set(_WORD.findall(first.after))
    for part in _QUOTED.findall(second.instruction):
        is_of_first = part in first.after and part not in first.before
        if is_of_first or changed & set(_WORD.findall(part)):
            return None
    asked = [
        closed(wordings.instruction(edit, of, inventor.rng))
        for of, edit in ((first_kind, first), (kind, second))
    ]
    if any("?" in one or "\n" in one or not wordings.begins_as_instruction(one) for one in asked):
        return None
    small = [one[:1].lower() + one[1:] for one in asked]
    return replace(first, after=second.after), inventor.rng.choice(_JOINED).format(*small)


def _concerns(kind: str) -> str:
    """What edits of a kind add, drop or change: of two that concern the same, one may undo the
    other."""
    same = {short_edits.DESCRIBE: "docstring", "make_sync": "async", "decorate": "decorator"}
    return same.get(kind) or kind.rpartition("_")[2].removesuffix("s")


def request_for_two(inventor: Inventor) -> list[tuple[str, str]]:
    """A request for two edits with its code, and the answer."""
    while (found := two_at_once(*short_edits.drawn(inventor), inventor)) is None:
        pass
    edit, asked = found
    words = wordings.spoken(asked, inventor.rng, edit)
    content = wordings.request(words, edit.before, inventor.rng)
    return [("user", content), ("assistant", edits.fenced(edit.after))]


def mistaken(edit: Edit, inventor: Inventor) -> tuple[Edit, str, str] | None:
    """The edit with a wrong name, number, type or error in it, the wrong text, and the right one.

    None unless the edit adds exactly one such text.
    """
    rng, quoted = inventor.rng, _QUOTED.findall(edit.instruction)
    added = {one for one in quoted if not _whole(one).search(edit.before)}
    right = added.pop() if len(added) == 1 else ""
    if not re.fullmatch(r"@?\w+", right):
        return None
    right = right.removeprefix("@")
    alike: Sequence[str] = [inventor.name()]
    if right.endswith("Error"):
        alike = [*short_edits.OTHER_ERRORS, short_edits.error_of_a_library(inventor)]
    elif right.isdigit():
        alike = [str(rng.randint(0, 999))]
    else:
        alike = next((values for values in (_VALUES, _TYPES) if right in values), alike)
    wrong = rng.choice(alike)
    if _whole(wrong).search(f"{edit.before} {edit.after}") or not _whole(right).search(edit.after):
        return None
    words = re.sub(rf"`(@?){right}`", rf"`\g<1>{wrong}`", edit.instruction)
    after = _whole(right).sub(wrong, edit.after)
    return replace(edit, instruction=words, after=after), wrong, right


def _whole(text: str) -> re.Pattern[str]:
    """Finds the text where it is not a part of a longer word."""
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def conversations(inventor: Inventor, count: int) -> Iterator[list[tuple[str, str]]]:
    """`count` requests, each with its answer; some are for two edits at once."""
    for _ in range(count):
        if inventor.rng.random() < TOGETHER:
            yield request_for_two(inventor)
        else:
            yield short_edits.conversation(*short_edits.drawn(inventor), inventor.rng)
