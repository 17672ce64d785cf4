"""The many ways in which people ask for an edit.

Edits come with an instruction in one of a few official wordings; here it is put into words as
they are typed: other verbs, with or without quotes around names, politely or not, before or
after the code, in its line or above it.
"""

from __future__ import annotations

import ast
import keyword
import random
import re
import textwrap
from collections.abc import Mapping, Sequence

from models.training.edits.base import PLACES, Edit, ends_open, phrase
from models.training.phrases import LISTS, WORDINGS, wordings_of

_PLAIN_SLOTS = ("what", "when", "side", "place", "text", "kind", "other")
"""Slots that no code is put into."""
_FIRST_WORDS = frozenset(
    (
        *LISTS["instruction"],
        *(
            w.partition(" ")[0].lower()
            for one in WORDINGS.values()
            for w in one.others
            if w[0].isalpha()
        ),
    )
)
"""What an instruction begins with where it does not begin with a name out of the code."""
_POLITE = ("please {}", "Please {}", "{} please", "can you {}", "Can you {}", "could you {}")
_POLITE_TOO = (
    *("could you please {}", "I want you to {}", "I'd like you to {}", "now {}", "just {}"),
    *("pls {}", "{} pls", "hey, {}"),
)
_ORDERS = frozenset(LISTS["instruction"]) - frozenset(
    (
        *("all", "an", "as", "async", "asynchronous", "docstring", "if", "it", "its", "no", "one"),
        *("the", "there", "untyped", "when", "where", "without"),
    )
)
"""First words of instructions that may stand after "can you"."""
_BY_HANDLER = 0.6
"""How often a try block is asked for by what it does with the error."""
_NAME = re.compile(r"\w+")
_EVERYWHERE = re.compile(r"every|each|all\b|wherever|throughout")
_QUOTED_PART = re.compile(r"(self\.|@)([`'])([^`']+)\2")
_QUOTED_TWICE = re.compile(r"`(\w+)`(: |=| = )`([^`]+)`")
_CONSTANTS = ("None", "True", "False")
_PYTHON = frozenset((*keyword.kwlist, "print")) - frozenset(_CONSTANTS)
"""Words that begin lines of code and may begin instructions."""
_MARK = re.compile(r"\{i\}[:.]")
_AFTER = (
    *("{i}: {c}",) * 6,
    *("{i}:\n{c}",) * 3,
    *("{i}\n{c}", "{i}\n\n{c}", "{i}:\n\n{c}", "{i}: `{c}`", "{i}. {c}", "{i} - {c}"),
    *("{i}:\n```python\n{c}\n```",) * 4,
    *("{i}\n```python\n{c}\n```", "{i}:\n```\n{c}\n```", "{i}\n```\n{c}\n```"),
)
_WITHIN = ("Given {c}, {i}", "In {c}, {i}")
"""Layouts in which the instruction goes on with a sentence."""
_BEFORE = (
    *("{c}\n{i}",) * 3,
    *("{c}\n\n{i}", "{c}\n\n{i}", "{c}\n\n{i}.", "```python\n{c}\n```\n{i}", "`{c}` {i}"),
    *("```\n{c}\n```\n{i}", "{c} - {i}", "Here is my code:\n{c}\n{i}", "I have {c}\n{i}"),
    *(*_WITHIN, "This is my function: `{c}`. {i}", "{c}  {i}"),
)

_AFTER_A_SENTENCE = ("{i}. {c}", "{i} - {c}")
"""Layouts for an instruction that is complete without the code."""
_RUNNING_ON = ("{c} - {i}", "{c}  {i}", *_WITHIN)
"""Layouts in which words that do not begin as an instruction would read as code."""


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
    """The edit's instruction in other words, or as it is where it has no others.

    `kind` is that of `short_edits.KINDS`, which has one more than edits do.
    """
    if rng.random() < 0.3:
        return edit.instruction
    for one in wordings_of(kind):
        found = slots(one.official, edit.instruction)
        if found is not None and one.others:
            others = one.others
            if "what" in found and edit.kind == "wrap_in_try" and rng.random() < _BY_HANDLER:
                others, found = _handling(found["what"])
            if found.get("old") in _NAME.findall(edit.after):  # in a string or comment, which stay
                others = [words for words in others if not _EVERYWHERE.search(words)]
            pointing = _pointing(edit, found) if rng.random() < 0.25 else ()
            words = phrase(rng, pointing or others, **_quoted(found, rng))
            words = _QUOTED_PART.sub(r"\2\1\3\2", words)
            return _QUOTED_TWICE.sub(r"`\1\2\3`", words)
    return edit.instruction


def _pointing(edit: Edit, found: Mapping[str, str]) -> Sequence[str]:
    """Wordings that tell what a name or a line is; none where nothing is known of it."""
    old, line = found.get("old", ""), found.get("line", "")
    if edit.kind == "rename_variable" and "old2" not in found:
        known = old in _parameters(edit.before)
        return WORDINGS["rename_variable: parameter"].others if known else ()
    prints = line.startswith("print(") and edit.before.count("print(") == 1
    known = edit.kind == "delete_line" and prints
    return WORDINGS["delete_line: print"].others if known else ()


def _handling(what: str) -> tuple[Sequence[str], dict[str, str]]:
    """Wordings for what a try block does, and what they are filled with."""
    for one in wordings_of("try"):
        found = slots(one.official, what)
        if found is not None:
            return one.others, found
    raise ValueError(f"no words for a try block that {what}")


def _parameters(code: str) -> set[str]:
    """The names of a function's parameters; none where the code is no function."""
    first = ast.parse(textwrap.dedent(code)).body[0]
    if not isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    return {node.arg for node in ast.walk(first.args) if isinstance(node, ast.arg)}


def _quoted(found: Mapping[str, str], rng: random.Random) -> dict[str, str]:
    """The slots with backquotes around code, mostly, or without."""
    marks = rng.choice(("`", "`", "`", "", "", "", "'"))
    values = [value for name, value in found.items() if name not in _PLAIN_SLOTS]
    if marks == "'" and not all(v.isidentifier() and v not in _CONSTANTS for v in values):
        marks = "`"  # names in quotes would look like strings beside other code

    def shown(name: str, value: str) -> str:
        if name == "when":
            return value if marks == "`" else value.replace("`", "")
        if name in _PLAIN_SLOTS or not value:
            return value
        plain = value.isidentifier() or (marks != "'" and len(value) < 12 and " " not in value)
        return f"{marks}{value}{marks}" if plain else f"`{value}`"

    return {name: shown(name, value) for name, value in found.items()}


def spoken(words: str, rng: random.Random, edit: Edit | None = None) -> str:
    """An instruction as people say it: in small letters or large ones, politely or not. Names of
    the `edit`'s code keep their letters."""
    code = f"{edit.before}\n{edit.after}" if edit else ""
    names = set(_NAME.findall(code)) - _PYTHON
    if not begins_as_instruction(words) or words.partition(" ")[0] in names:
        return words
    if rng.random() < 0.2 and words.partition(" ")[0].lower() in _ORDERS:
        whole = not ends_open(words) and "\n" not in words
        usable = [f for f in (*_POLITE, *_POLITE_TOO) if f.endswith("{}") or whole]
        words = words[:1].lower() + words[1:]
        return rng.choice(usable).replace("{}", words)
    first = words[:1].upper() if rng.random() < 0.6 else words[:1].lower()
    return first + words[1:]


def ended(words: str, rng: random.Random, marks: Sequence[str] = ("", "", ".")) -> str:
    """The words with one of the marks at their end, if they are no question."""
    return words if words.endswith("?") else words + rng.choice(marks)


def begins_as_instruction(words: str) -> bool:
    """False where the first word may be a name out of the code, which keeps its letters."""
    return words.partition(" ")[0].lower() in _FIRST_WORDS


def request(words: str, code: str, rng: random.Random) -> str:
    """The instruction and the code as one message."""
    is_open = ends_open(words)
    if rng.random() < 0.75 or "```" in words:
        usable = [f for f in _AFTER if "\n" in f or "\n" not in code]
        usable = [f for f in usable if not (is_open and f in _AFTER_A_SENTENCE)]
        frame = "{i} {c}" if is_open and "\n" not in code and rng.random() < 0.15 else ""
    else:
        usable = [f for f in _BEFORE if "\n" not in code or f.startswith(("{c}\n", "`", "Here"))]
        usable = [f for f in usable if "\n" not in code or not f.startswith("`{")]
        if not begins_as_instruction(words):
            usable = [f for f in usable if f not in _RUNNING_ON]
        if words.partition(" ")[0] in _PYTHON:
            usable = [f for f in usable if "`" in f]  # it would be one more line of the code
        if "#" in code.rpartition("\n")[2]:
            usable = [f for f in usable if "{c}\n" in f]  # what follows would be of the comment
        words = f"{words} {rng.choice(('it', 'this'))}" if is_open else words
        words = words.replace(" the following code", " the code above")
        frame = ""
    frame = frame or rng.choice(usable)
    if frame in _WITHIN and words.partition(" ")[0] not in _NAME.findall(code):
        words = words[:1].lower() + words[1:] if begins_as_instruction(words) else words
    if words.endswith("?"):
        frame = _MARK.sub("{i}", frame)
    return frame.replace("{i}", "\0", 1).replace("{c}", code, 1).replace("\0", words, 1)
