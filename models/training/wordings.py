"""The many ways in which people ask for an edit.

Edits come with an instruction in one of a few official wordings; here it is put into words as
they are typed: other verbs, with or without quotes around names, politely or not, before or
after the code, in its line or above it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from models.training.edits import bodies, names, signatures
from models.training.edits.base import PLACES, Edit, phrase
from models.training.phrases import LISTS

Table = Sequence[tuple[Sequence[str], Sequence[str]]]

_RENAME = (
    "rename {old} to {new} in {it}",
    "rename {old} to {new}",
    "rename {old} as {new} in {it}",
    "rename {old} into {new}",
    "rename variable {old} to {new} in {it}",
    "rename the name {old} to {new}",
    "change {old} to {new} everywhere in {it}",
    "change the name {old} into {new}",
    "{old} should be called {new} in {it}",
    "{old} should be {new}",
    "replace the name {old} by {new} in {it}",
    "replace every {old} with {new} in {it}",
    "{old} -> {new}",
    "use {new} for {old} in {it}",
    "call it {new} instead of {old}",
    "let {old} be called {new}",
    "I would rather call {old} {new}",
    "swap the name {old} for {new}",
    "give {old} the name {new}",
)
_CASUAL: Mapping[str, Table] = {
    "rename_variable": (
        (
            names._RENAME_TWO,
            (
                "rename {old} to {new} and {old2} to {new2}",
                "change {old} to {new} and {old2} to {new2} in {it}",
                "{old} -> {new}, {old2} -> {new2}",
            ),
        ),
        (names._RENAME, _RENAME),
    ),
    "rename_function": (
        (
            names._RENAME_FUNCTION[2:3],
            (
                "rename function {old} to {new} in {it}",
                "the function {old} should be called {new}",
                *_RENAME,
            ),
        ),
        (
            names._RENAME_FUNCTION[0:1] + names._RENAME_FUNCTION[3:],
            (
                "rename this function to {new}",
                "call this function {new}",
                "name the function {new}",
                "the function should be called {new}",
                "change the name of the function to {new}",
                "change the function name to {new}",
                "give the function the name {new}",
                "give it the name {new}",
            ),
        ),
        (names._RENAME_FUNCTION[1:2], _RENAME),
    ),
    "rename_attribute": (
        (
            names._RENAME_ATTRIBUTE,
            (
                "rename self.{old} to self.{new} in {it}",
                "rename the attribute {old} to {new}",
                "change self.{old} to self.{new}",
                "self.{old} should be self.{new}",
            ),
        ),
    ),
    "method_to_function": (
        (
            names._METHOD_TO_FUNCTION,
            (
                "make this a plain function with {new} instead of self",
                "turn the method into a function, {new} in place of self",
                "use {new} instead of self and make it a function",
            ),
        ),
    ),
    "add_hint": (
        (
            signatures._ADD_HINT,
            (
                "add the type {hint} to {name} in {it}",
                "annotate {name} with {hint}",
                "{name} is of type {hint}, add the hint",
                "add a type hint {hint} for {name}",
                "type {name} as {hint}",
                "make {name} a {hint}",
            ),
        ),
        (
            signatures._ADD_RETURN,
            (
                "add a return type of {hint} to {it}",
                "it returns {hint}, add the hint",
                "annotate the result as {hint}",
                "add -> {hint} to {it}",
            ),
        ),
    ),
    "drop_hints": (
        (
            signatures._DROP_HINTS,
            (
                "remove all type hints from {it}",
                "remove the annotations",
                "no type hints please",
                "strip the types from {it}",
                "without type hints",
            ),
        ),
    ),
    "add_default": (
        (
            signatures._ADD_DEFAULT,
            (
                "give {name} the default {value} in {it}",
                "give {name} a default of {value}",
                "set the default of {name} to {value}",
                "{name} should default to {value} in {it}",
                "make {value} the default of {name}",
                "make {name} optional with default {value}",
                "default {name} to {value}",
            ),
        ),
    ),
    "drop_default": (
        (
            signatures._DROP_DEFAULT,
            (
                "remove the default value of {name} in {it}",
                "{name} should have no default",
                "make {name} mandatory in {it}",
                "make the argument {name} required",
                "delete the default for {name}",
            ),
        ),
    ),
    "add_parameter": (
        (
            (*signatures._ADD_PARAMETER[:1], *signatures._ADD_PARAMETER[2:]),
            (
                "add a parameter {name} with default {value} to {it}",
                "add an argument {name} defaulting to {value}",
                "add another parameter {name} = {value} to {it}",
                "it should also take {name}, by default {value}",
            ),
        ),
    ),
    "make_async": (
        (
            signatures._MAKE_ASYNC,
            (
                "make this function async",
                "make the function asynchronous",
                "turn it into a coroutine",
                "convert to async",
                "add async to {it}",
                "make it an async function",
                "async please",
            ),
        ),
    ),
    "decorate": (
        (
            signatures._DECORATE,
            (
                "add @{name} to {it}",
                "decorate {it} with @{name}",
                "put @{name} on top of {it}",
                "add the {name} decorator to {it}",
                "make it @{name}",
            ),
        ),
    ),
    "wrap_in_try": (
        (
            bodies._WRAP,
            (
                "wrap it in a try block that {what}",
                "put a try around the body that {what}",
                "add a try block that {what} to {it}",
                "use try and except so that it {what}",
                "make it a try statement that {what}",
            ),
        ),
    ),
    "add_docstring": (
        (
            bodies._ADD_DOCSTRING,
            (
                'add the docstring "{text}" to {it}',
                'add a docstring saying "{text}"',
                'give it the docstring "{text}"',
                'document it: "{text}"',
                'the docstring should be "{text}"',
            ),
        ),
    ),
    "drop_docstring": (
        (
            bodies._DROP_DOCSTRING,
            ("remove the docstring", "no docstring", "delete the docstring of {it}"),
        ),
    ),
    "guard": (
        (
            bodies._GUARD,
            (
                "return {value} if {name} is None in {it}",
                "if {name} is None return {value}",
                "add a check: if {name} is None, return {value}",
                "when {name} is None it should return {value}",
                "guard against {name} being None, return {value}",
            ),
        ),
    ),
    "insert_line": (
        (
            bodies._INSERT,
            (
                "add {new} {side} {line} in {it}",
                "insert {new} {side} {line}",
                "add a line {new} {side} {line}",
                "write {new} {side} {line}",
                "there should be {new} {side} {line}",
            ),
        ),
    ),
    "delete_line": (
        (
            bodies._DELETE,
            (
                "remove the line {line} from {it}",
                "delete {line}",
                "drop {line} from {it}",
                "take out the line {line}",
                "get rid of {line} in {it}",
            ),
        ),
    ),
    "replace_expression": (
        (
            bodies._REPLACE,
            (
                "replace {old} with {new} in {it}",
                "replace {old} by {new}",
                "change {old} to {new} in {it}",
                "change {old} into {new}",
                "put {new} in place of {old}",
                "write {new} instead of {old} in {it}",
                "swap {old} for {new}",
                "{old} should be {new}",
            ),
        ),
    ),
    "describe": (
        (
            ("Add a docstring to {it}",),
            (
                "add a docstring to {it}",
                "add a docstring",
                "write a docstring for {it}",
                "document {it}",
                "give it a docstring",
                "docstring please",
                "add documentation to {it}",
                "add a doc string to {it}",
            ),
        ),
    ),
    "drop_comments": (
        (
            ("Remove the comments from {it}", "Delete all comments", "Strip the comments"),
            (
                "remove the comments",
                "remove all comments from {it}",
                "no comments",
                "delete the comments in {it}",
                "without comments",
                "drop every comment from {it}",
            ),
        ),
    ),
}
_FIRST_WORDS = frozenset(LISTS["instruction"])
"""What an instruction begins with where it does not begin with a name out of the code."""
_POLITE = ("please {}", "Please {}", "{} please", "can you {}", "Can you {}", "could you {}")
_POLITE_TOO = ("could you please {}", "I want you to {}", "I'd like you to {}", "now {}", "just {}")
_PREPOSITION = re.compile(r"\s(?:in|from|to|of|for|on top of)$")
_AFTER = (
    *("{i}: {c}",) * 6,
    *("{i}:\n{c}",) * 3,
    *("{i}\n{c}", "{i}\n\n{c}", "{i}:\n\n{c}", "{i}: `{c}`", "{i}. {c}", "{i} - {c}"),
    *("{i}:\n```python\n{c}\n```",) * 4,
    *("{i}\n```python\n{c}\n```", "{i}:\n```\n{c}\n```", "{i}\n```\n{c}\n```"),
)
_BEFORE = (
    *("{c}\n{i}", "{c}\n\n{i}", "{c}\n\n{i}.", "```python\n{c}\n```\n{i}", "`{c}` {i}"),
    *("```\n{c}\n```\n{i}", "{c} - {i}", "Here is my code:\n{c}\n{i}", "I have {c}\n{i}"),
    *("Given {c}, {i}", "In {c}, {i}", "This is my function: {c}. {i}", "{c}  {i}"),
)


def slots(templates: Sequence[str], instruction: str) -> dict[str, str] | None:
    """What one of the templates was filled with to give the instruction, or None."""
    places = "|".join(map(re.escape, sorted(set(PLACES), reverse=True)))
    for template in templates:
        pattern = re.escape(template).replace(r"\ \{it\}", f"(?:{places})")
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", pattern)
        found = re.fullmatch(pattern, instruction)
        if found:
            return found.groupdict()
    return None


def instruction(edit: Edit, kind: str, rng: random.Random) -> str:
    """The edit's instruction in other words, or as it is where it has no others."""
    if rng.random() < 0.3:
        return edit.instruction
    for official, casual in _CASUAL.get(kind, ()):
        found = slots(official, edit.instruction)
        if found is not None:
            return phrase(rng, casual, **_quoted(found, rng))
    return edit.instruction


def _quoted(found: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    """The slots with backquotes around code, mostly, or without."""
    marks = rng.choice(("`", "`", "`", "", "", "", "'"))

    def shown(name: str, value: str) -> str:
        if name in ("what", "side", "text") or not value:
            return value
        plain = value.isidentifier() or (marks != "'" and len(value) < 12 and " " not in value)
        return f"{marks}{value}{marks}" if plain else f"`{value}`"

    return {name: shown(name, value) for name, value in found.items()}


def spoken(words: str, rng: random.Random) -> str:
    """An instruction as people say it: in small letters or large ones, politely or not."""
    if words.partition(" ")[0].lower() not in _FIRST_WORDS:
        return words
    if rng.random() < 0.2:
        words = words[:1].lower() + words[1:]
        return rng.choice((*_POLITE, *_POLITE_TOO)).replace("{}", words)
    first = words[:1].upper() if rng.random() < 0.6 else words[:1].lower()
    return first + words[1:]


def ends_open(words: str) -> bool:
    """True where the instruction ends with a word that the code must follow."""
    return bool(_PREPOSITION.search(words))


def request(words: str, code: str, rng: random.Random) -> str:
    """The instruction and the code as one message."""
    is_open = ends_open(words)
    if rng.random() < 0.75 or "```" in words:
        usable = [f for f in _AFTER if "\n" in f or "\n" not in code]
        frame = "{i} {c}" if is_open and "\n" not in code and rng.random() < 0.15 else ""
    else:
        usable = [f for f in _BEFORE if "\n" not in code or f.startswith(("{c}\n", "`", "Here"))]
        usable = [f for f in usable if "\n" not in code or not f.startswith("`{")]
        words = f"{words} {rng.choice(('it', 'this'))}" if is_open else words
        frame = ""
    frame = frame or rng.choice(usable)
    return frame.replace("{i}", "\0", 1).replace("{c}", code, 1).replace("\0", words, 1)
