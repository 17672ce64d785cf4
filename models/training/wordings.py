"""The many ways in which people ask for an edit.

Edits come with an instruction in one of a few official wordings; here it is put into words as
they are typed: other verbs, with or without quotes around names, politely or not, before or
after the code, in its line or above it, or going on from what was said before.
"""

import ast
import keyword
import random
import re
import textwrap
from collections.abc import Mapping, Sequence

from models.training.edits.base import PLACES, Edit, closed, ends_open, phrase
from models.training.phrases import CHOICES, LISTS, WORDINGS, wordings_of

_OTHERS = (words for one in WORDINGS.values() for words in one.others if words[0].isalpha())
_FIRST_WORDS = {*LISTS["instruction"], *(words.partition(" ")[0].lower() for words in _OTHERS)}
_ORDERS = {*LISTS["instruction"]} - {*CHOICES["no_orders"]}
_BY_HANDLER = 0.6  # of try blocks are asked for by what they do with the error
_NAME = re.compile(r"\w+")
_QUOTED = re.compile(r"`([^`]+)`")
_EVERYWHERE = re.compile(r"every|each|all\b|wherever|throughout")
_QUOTED_PART = re.compile(r"(self\.|@)([`'])([^`']+)\2")
_QUOTED_TWICE = re.compile(r"`(\w+)`(: |=| = )`([^`]+)`")
_CONSTANTS = ("None", "True", "False")
_PYTHON = {*keyword.kwlist, "print"} - {*_CONSTANTS}  # begin lines of code, and may begin requests
_MARK = re.compile(r"\{i\}[:.]")


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
    part, line = "", found.get("line", "")
    if edit.kind == "rename_variable" and "old2" not in found:
        part = "rename_variable: parameter" if found.get("old") in _parameters(edit.before) else ""
    elif edit.kind == "delete_line" and line.startswith("print("):
        part = "delete_line: print" if edit.before.count("print(") == 1 else ""
    return WORDINGS[part].others if part else ()


def _handling(what: str) -> tuple[list[str], dict[str, str]]:
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
    marks, plain_slots = rng.choice(("`", "`", "`", "", "", "", "'")), CHOICES["plain_slots"]
    values = [value for name, value in found.items() if name not in plain_slots]
    if marks == "'" and not all(v.isidentifier() and v not in _CONSTANTS for v in values):
        marks = "`"  # names in quotes would look like strings beside other code

    def shown(name: str, value: str) -> str:
        if name == "when":
            return value if marks == "`" else value.replace("`", "")
        if name in plain_slots or not value:
            return value
        plain = value.isidentifier() or (marks != "'" and len(value) < 12 and " " not in value)
        return f"{marks}{value}{marks}" if plain else f"`{value}`"

    return {name: shown(name, value) for name, value in found.items()}


def small(words: str) -> str:
    """The words with a small first letter."""
    return words[:1].lower() + words[1:]


def large(words: str) -> str:
    """The words with a large first letter."""
    return words[:1].upper() + words[1:]


def spoken(words: str, rng: random.Random, edit: Edit | None = None) -> str:
    """An instruction as people say it: in small letters or large ones, politely or not. Names of
    the `edit`'s code keep their letters."""
    code = f"{edit.before}\n{edit.after}" if edit else ""
    names = set(_NAME.findall(code)) - _PYTHON
    if not begins_as_instruction(words) or words.partition(" ")[0] in names:
        return words
    if rng.random() < 0.2 and words.partition(" ")[0].lower() in _ORDERS:
        whole = not ends_open(words) and "\n" not in words
        usable = [form for form in CHOICES["polite"] if form.endswith("{}") or whole]
        return str(rng.choice(usable)).replace("{}", small(words))
    return large(words) if rng.random() < 0.6 else small(words)


def ended(words: str, rng: random.Random, marks: Sequence[str] = ("", "", ".")) -> str:
    """The words with one of the marks at their end, if they are no question."""
    return words if words.endswith("?") else words + rng.choice(marks)


def begins_as_instruction(words: str) -> bool:
    """False where the first word may be a name out of the code, which keeps its letters."""
    return words.partition(" ")[0].lower() in _FIRST_WORDS


def request(words: str, code: str, rng: random.Random) -> str:
    """The instruction and the code as one message."""
    is_open, within = ends_open(words), CHOICES["code_within"]
    if rng.random() < 0.75 or "```" in words:
        usable = [f for f in CHOICES["code_after"] if "\n" in f or "\n" not in code]
        usable = [f for f in usable if not (is_open and f in CHOICES["after_a_sentence"])]
        frame = "{i} {c}" if is_open and "\n" not in code and rng.random() < 0.15 else ""
    else:
        usable = CHOICES["code_before"]
        if "\n" in code:
            usable = [f for f in usable if f.startswith(("{c}\n", "```", "Here"))]
        if not begins_as_instruction(words):
            usable = [f for f in usable if f not in CHOICES["running_on"]]
        if words.partition(" ")[0] in _PYTHON:
            usable = [f for f in usable if "`" in f]  # it would be one more line of the code
        if "#" in code.rpartition("\n")[2]:
            usable = [f for f in usable if "{c}\n" in f]  # what follows would be of the comment
        words = f"{words} {rng.choice(('it', 'this'))}" if is_open else words
        words = words.replace(" the following code", " the code above")
        frame = ""
    frame = frame or rng.choice(usable)
    if frame in within and words.partition(" ")[0] not in _NAME.findall(code):
        words = small(words) if begins_as_instruction(words) else words
    if words.endswith("?"):
        frame = _MARK.sub("{i}", frame)
    return frame.replace("{i}", "\0", 1).replace("{c}", code, 1).replace("\0", words, 1)


def in_few_words(kind: str, edit: Edit, rng: random.Random, *, again: bool) -> str:
    """The shortest request for an edit of earlier code; `again` if the edit before it was
    of the same kind."""
    if kind not in CHOICES["few_words"]:
        drawn = (instruction(edit, kind, rng) for _ in range(4))
        return as_follow_up(closed(min(drawn, key=len)), rng, edit)
    words: str = rng.choice(CHOICES["few_words"][kind])
    known, names = set(_NAME.findall(edit.before)), _QUOTED.findall(edit.instruction)
    names.sort(key=lambda name: name not in known)  # the old one first
    fits = words.count("{}") in (0, len(names))
    if again and fits and rng.random() < 0.8:
        more = rng.choice(CHOICES["one_more"]).format(*names)
        return str(rng.choice(CHOICES["and_one_more"])).replace("{}", more)
    return as_follow_up(words.format(*names) if fits else closed(edit.instruction), rng, edit)


def as_follow_up(words: str, rng: random.Random, edit: Edit | None = None) -> str:
    """Some words as a message: alone, or going on from what was said before."""
    chance, first = rng.random(), words.partition(" ")[0]
    if edit and first in _NAME.findall(f"{edit.before}\n{edit.after}"):
        return ended(words, rng)
    goes_on = first.lower() not in CHOICES["not_going_on"] and not words.endswith("?")
    if chance < 0.35 and goes_on:
        words = small(words) if begins_as_instruction(words) else words
        words = str(rng.choice(CHOICES["follow"])).replace("{}", words)
    elif chance < 0.6 and begins_as_instruction(words):
        words = large(words)
    return ended(words, rng)
