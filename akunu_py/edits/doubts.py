"""Doubts of an edited text: what is wrong with it that the instruction did not ask for."""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from akunu_py.edits.parts import definitions, parse_python

_DELETES: Final = re.compile(
    r"\b(remov|delet|drop|strip|clean|eras|discard|omit|without|only|instead|replac|merg|split|"
    r"extract|mov|simplif|shorten|reduc|trim|refactor|rewrit|inlin|unus|obsolet|dead|dedup)",
    re.IGNORECASE,
)
_LOST_LINES, _LOST_SHARE = 8, 0.5
"""More lines than this, and a larger share of them, are not lost unasked: of 522 right answers, of
EditEval, HumanEvalPack and renames in that, one loses as much, and its request was to "remove"."""
_ELISION: Final = re.compile(
    r"^\s*(?:#|//|--|;|/\*|<!--|%)\s*(?:\.\.\.|…|\[).*\b(?:rest|exist|unchanged|same|remain|other)",
    re.IGNORECASE | re.MULTILINE,
)
"""How models write that they leave something out."""


def doubt(name: str, old: str, new: str, instruction: str) -> str | None:
    """Why an edited file is perhaps not what was asked for, in one sentence; None if nothing is
    wrong with it.

    Args:
        name: of the file; its suffix tells the language.
        old, new: all of its text.
        instruction: what was asked for.
    """
    if new == old:
        return "The model gave the text back unchanged."
    suffix = name.rpartition(".")[2].lower()
    language, check = _LANGUAGES.get(suffix, ("", None))
    is_valid = check is not None and check(old) is None
    if check and is_valid and (wrong := check(new)):
        return f"With this edit, {name} is no longer valid {language} ({wrong})."
    if len(_ELISION.findall(new)) > len(_ELISION.findall(old)):
        return "The answer leaves out a part of the text, with a comment in its place."
    if language == "Python" and is_valid and (gone := _gone(old, new, instruction)):
        which = ", ".join(gone[:3]) + " ..." * (len(gone) > 3)
        return f"The answer drops {which}, which the instruction does not mention."
    before, after = (sum(map(bool, map(str.strip, text.split("\n")))) for text in (old, new))
    lost = before - after
    if lost > _LOST_LINES and lost > _LOST_SHARE * before and not _DELETES.search(instruction):
        return f"The answer drops {lost} of {before} lines, which the instruction does not ask for."
    return None


def _gone(old: str, new: str, instruction: str) -> list[str]:
    """The functions and classes that have no successor and that the instruction does not name."""
    before, after = (
        Counter(name.rpartition(".")[2] for name, _ in definitions(parse_python(text)))
        for text in (old, new)
    )
    gone, come = before - after, after - before
    unasked = sorted(name for name in gone if not re.search(rf"\b{name}\b", instruction))
    few = gone.total() <= come.total()
    return [] if few or _DELETES.search(instruction) else unasked


def _wrong(parse: Callable[[str], Any]) -> Callable[[str], str | None]:
    def check(text: str) -> str | None:
        try:
            parse(text)
        except SyntaxError as error:
            return f"line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            return str(error).rstrip(".")
        return None

    return check


_LANGUAGES: Final[Mapping[str, tuple[str, Callable[[str], str | None]]]] = {
    "py": ("Python", _wrong(parse_python)),
    "pyi": ("Python", _wrong(parse_python)),
    "json": ("JSON", _wrong(json.loads)),
    "toml": ("TOML", _wrong(tomllib.loads)),
}
