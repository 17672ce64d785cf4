"""How people ask for a change of code that is there already: in few words, or going on from what
was said before.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from models.training import wordings
from models.training.edits import Edit
from models.training.edits.base import closed
from models.training.short_edits import DESCRIBE

FEW_WORDS: Mapping[str, tuple[str, ...]] = {
    "make_async": (
        *("make it async", "make this async", "make this function async", "async", "async please"),
        *("turn it into a coroutine", "it should be async"),
    ),
    DESCRIBE: ("add a docstring", "give it a docstring", "add a docstring please"),
    "drop_hints": ("remove the type hints", "remove type hints", "remove all hints", "no hints"),
    "drop_comments": (
        *("remove the comments", "remove comments", "delete all comments", "no comments"),
        *("without the comments", "take the comments out"),
    ),
    "drop_docstring": (
        *("remove the docstring", "drop the docstring", "delete its docstring", "no docstring"),
        *("without the docstring", "take the docstring out"),
    ),
    "function_to_method": ("turn it into a method", "make it a method", "as a method"),
    "rename_variable": ("rename {} to {}", "rename {} to {}", "call {} {}", "{} -> {}"),
    "rename_function": ("rename {} to {}", "rename the function {} to {}"),
}
_ONE_MORE = ("{} to {}", "{} to {}", "{} into {}", "call {} {}", "{} to {} as well", "{} -> {}")
"""One more name where a name is what was changed last; the rest is understood."""
_AND = ("and {}", "and {}", "And {}", "also {}", "now {}", "{}", "and also {}")
_QUOTED, _NAME = re.compile(r"`([^`]+)`"), re.compile(r"\w+")
_FOLLOW = (
    "now {}",
    "Now {}",
    "then {}",
    "and {}",
    "also {}",
    "next, {}",
    "ok, {}",
    "Great, now {}",
)

_NOT_GOING_ON = ("now", "no", "not", "hey", "pls", "please", "the", "it", "i", "i'd", "i'm")
"""A message with one of these as its first word, in small letters, is not put into `_FOLLOW`."""


def in_few_words(kind: str, edit: Edit, rng: random.Random, *, again: bool) -> str:
    """The shortest request for an edit of earlier code; `again` if the edit before it was
    of the same kind."""
    if kind not in FEW_WORDS:
        drawn = (wordings.instruction(edit, kind, rng) for _ in range(4))
        return as_follow_up(closed(min(drawn, key=len)), rng, edit)
    words, names = rng.choice(FEW_WORDS[kind]), _QUOTED.findall(edit.instruction)
    known = set(_NAME.findall(edit.before))
    names.sort(key=lambda name: name not in known)  # the old one first
    fits = words.count("{}") in (0, len(names))
    if again and fits and rng.random() < 0.8:
        more = rng.choice(_ONE_MORE).format(*names)
        return rng.choice(_AND).replace("{}", more)
    return as_follow_up(words.format(*names) if fits else closed(edit.instruction), rng, edit)


def as_follow_up(words: str, rng: random.Random, edit: Edit | None = None) -> str:
    """Some words as a message: alone, or going on from what was said before."""
    chance, first = rng.random(), words.partition(" ")[0]
    if edit and first in _NAME.findall(f"{edit.before}\n{edit.after}"):
        return wordings.ended(words, rng)
    if chance < 0.35 and first.lower() not in _NOT_GOING_ON and not words.endswith("?"):
        if wordings.begins_as_instruction(words):
            words = words[:1].lower() + words[1:]
        words = rng.choice(_FOLLOW).replace("{}", words)
    elif chance < 0.6 and wordings.begins_as_instruction(words):
        words = words[:1].upper() + words[1:]
    return wordings.ended(words, rng)
