"""Doubts of an edited text: what is wrong with it that the instruction did not ask for."""

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from akunu_py.edits.parts import definitions, parse_python

_DELETES: Final = re.compile(
    r"(?<!not )(?<!n't )\b(?:remove|delete|drop|strip|trim|omit|shorten|simplify|reduce|rewrite|"
    r"merge|split|extract|inline|move|replace|refactor)\b",
    re.IGNORECASE,
)
"""Imperatives by which an instruction asks for less than there was."""
_QUOTED: Final = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|(?<!\w)'[^'\n]*'")
_LOST_LINES, _LOST_SHARE, _LOST_OF_FEW = 8, 0.5, 0.8
"""An edit is doubted if it loses more than this number of lines and more than the first share of
all; or fewer lines, and more than the second share. Of 522 right answers (EditEval, HumanEvalPack,
renames in these), five lose 4 to 7 lines, which are 56 to 78%."""
_ELISION: Final = re.compile(
    r"(?:^|\s)(?:#|//|--|;|/\*|<!--|%)\s*(?:\.\.\.|…|[(\[]?(?:the )?"
    r"(?:unchanged\b|(?:rest|remaining|existing|other|previous)\b.*"
    r"\b(?:code|functions?|methods?|class(?:es)?|file|text|unchanged|same|before)\b))",
    re.IGNORECASE,
)
"""How models write that they leave something out."""
_COMMENT: Final = re.compile(r"#|//|--|;|/\*|<!--|%|\.\.\.")
"""How lines of an update begin that may only describe it."""


def doubt(name: str, old: str, new: str, instruction: str) -> str | None:
    """Why an edited file is perhaps not what was asked for, in one sentence; None if nothing is
    wrong with it. The file's name tells the language; `old` and `new` are all of its text.
    """
    if new == old:
        return "The model gave the text back unchanged."
    language, check = _language(name, old)
    is_valid = check is not None and check(old) is None
    if check and is_valid and (wrong := check(new)):
        return f"With this edit, {name} is no longer valid {language} ({wrong})."
    if _elisions(new) - _elisions(old):
        return "The answer leaves out a part of the text, with a comment in its place."
    if language == "Python" and is_valid and (gone := _gone(old, new, instruction)):
        which = ", ".join(gone[:3]) + " ..." * (len(gone) > 3)
        return f"The answer drops {which}, which the instruction does not ask for."
    before, after = (sum(map(bool, map(str.strip, text.split("\n")))) for text in (old, new))
    lost = before - after
    share = _LOST_SHARE if lost > _LOST_LINES else _LOST_OF_FEW
    if lost > share * before and not _deletes(instruction):
        return f"The answer drops {lost} of {before} lines, which the instruction does not ask for."
    return None


def merge_doubt(old: str, update: str, new: str) -> str | None:
    """Why a text is perhaps not what a text and an update, which may leave out what stays, make
    together; None if it has the lines of both, and no others."""
    before, sketch, after = (
        {stripped: None for line in text.split("\n") if (stripped := line.strip())}
        for text in (old, update, new)
    )
    if added := [line for line in after if line not in before and line not in sketch]:
        return f"The answer has a line that is neither in the text nor in the update: {added[0]}"
    lost = [line for line in sketch if line not in after and not _COMMENT.match(line)]
    return f"The answer lacks a line of the update: {lost[0]}" if lost else None


def _gone(old: str, new: str, instruction: str) -> list[str]:
    """The functions and classes that have no successor, unless the instruction lets them go."""
    before, after = (
        Counter(name.rpartition(".")[2] for name, _ in definitions(parse_python(text)))
        for text in (old, new)
    )
    gone, come = before - after, after - before
    if gone.total() <= come.total() or _deletes(instruction):
        return []
    renamed = " ".join(_QUOTED.findall(instruction)) if come else ""
    return sorted(name for name in gone if not re.search(rf"\b{name}\b", renamed))


def _deletes(instruction: str) -> bool:
    return _DELETES.search(_QUOTED.sub("", instruction)) is not None


def _elisions(text: str) -> Counter[str]:
    """The lines that say that something is left out."""
    return Counter(line.strip() for line in text.split("\n") if _ELISION.search(line))


def _language(name: str, text: str) -> tuple[str, Callable[[str], str | None] | None]:
    """The language of a file by its name, that of the file a link leads to, or its first line; and
    what tells whether a text is valid in that."""
    for path in (name, os.path.realpath(name)):
        if found := _LANGUAGES.get(os.path.splitext(path)[1].lower()):
            return found
    return _PYTHON if re.match("#!.*python", text) else ("", None)


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


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_PYTHON: Final = ("Python", _wrong(parse_python))
_JSON: Final = ("JSON", _wrong(partial(json.loads, parse_constant=_no_constant)))
_LANGUAGES: Final[Mapping[str, tuple[str, Callable[[str], str | None]]]] = {
    ".py": _PYTHON,
    ".pyi": _PYTHON,
    ".json": _JSON,
    ".ipynb": _JSON,
    ".toml": ("TOML", _wrong(tomllib.loads)),
}
