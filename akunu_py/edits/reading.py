"""Requests for edits, and reading the answers, in one of three formats.

`whole`: the text with its changes, in a fenced block. `blocks`: search/replace blocks, as aider's
models write them. `diff`: a unified diff, whose line numbers may be wrong, as models cannot count.
An answer is read by the format it has, whichever was asked for.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from akunu_py.errors import EditError

if TYPE_CHECKING:
    from akunu_py.text.tokenizer import Message

FORMATS: Final = ("whole", "blocks", "diff")
WHOLE, BLOCKS, DIFF = FORMATS

_ASKED: Final = {
    WHOLE: "the whole edited text in one fenced block.",
    BLOCKS: "search/replace blocks like this one, as few and short as will do:\n"
    "<<<<<<< SEARCH\nlines to replace, exactly as they are\n=======\nlines in their place\n"
    ">>>>>>> REPLACE",
    DIFF: "a unified diff in one fenced block, with a line or two of context.",
}
"""What a system message asks for. In the request itself, it made ember edit what it refuses."""
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)
_BLOCK: Final = re.compile(
    r"^<{5,9} ?SEARCH>?[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} ?REPLACE[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_BEGUN: Final = re.compile(r"^<{5,9} ?SEARCH", re.MULTILINE)
_DIFF: Final = re.compile(r"(?:--- .*\n\+\+\+ |@@[ \n])")
_FILES: Final = re.compile(r"^--- .*\n\+\+\+ .*$", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@(?: -(\d+))?.*", re.MULTILINE)
_ELIDED: Final = re.compile(r"\s*\.\.\.\s*")
_MOST_QUOTED: Final = 300


@dataclass(frozen=True)
class Change:
    """Lines to look for, and lines to put in their place; `near` is the number of the first, from
    1, if the answer says it."""

    search: tuple[str, ...]
    replace: tuple[str, ...]
    near: int | None = None


def question(text: str, instruction: str, name: str, answer_format: str) -> "list[Message]":
    """The messages that ask for an edit of a text: one of the system, and the user's."""
    language = os.path.splitext(name)[1][1:].lower()
    language = "python" if language in ("py", "pyi") else language
    fence = _fence_for(text)
    return [
        {"role": "system", "content": f"Answer a request for an edit with {_ASKED[answer_format]}"},
        {"role": "user", "content": f"{instruction.strip()}\n{fence}{language}\n{text}\n{fence}"},
    ]


def references(text: str, answer_format: str) -> tuple[str, ...]:
    """What an answer may repeat beside the question: the lines of a diff have a mark each."""
    if answer_format != DIFF:
        return ()
    return tuple("\n".join(mark + line for line in text.split("\n")) for mark in "- ")


def is_complete(answer: str, text: str) -> bool:
    """Whether an answer with one block has come to the end of that; the rest is not needed."""
    opened = _FENCE.search(answer)
    if opened is None or _BEGUN.search(answer) or _fence_for(text) != "```":
        return False
    return "\n" in answer[opened.end() + 1 + len(_block(answer, text)) :]


def last_block(answer: str) -> str:
    """An answer from its last fenced block on; all of it if it has search/replace blocks, or no
    fenced one."""
    opened = list(_FENCE.finditer(answer))[::2]
    return answer[opened[-1].start() :] if opened and not _BEGUN.search(answer) else answer


def whole_lines(answer: str, text: str) -> list[str]:
    """The complete lines so far of an answer with the whole text, but for empty ones at its ends;
    none if it has another format."""
    if _has_changes(answer, text) or not _FENCE.search(answer):
        return []
    complete = _block(answer, text).rpartition("\n")[0].strip("\n")
    return complete.split("\n") if complete else []


def changes_in(answer: str) -> list[Change]:
    """The changes of an answer with search/replace blocks or a diff."""
    found: list[Change] = []
    if _BEGUN.search(answer):
        found = [Change(_lines(old), _lines(new)) for old, new in _BLOCK.findall(answer)]
    else:
        diff = _FILES.sub("@@", _block(answer, ""))
        _, *hunks = _HUNK.split(diff)  # a number and lines for each, in turns
        for near, lines in zip(hunks[::2], hunks[1::2], strict=True):
            hunk = [it if it[:1] in "+-" and it else f" {it.removeprefix(' ')}"
                    for it in lines.rstrip("\n").split("\n")[1:] if it[:1] != "\\"]  # fmt: skip
            old, new = (tuple(it[1:] for it in hunk if it[0] != other) for other in "+-")
            found.append(Change(old, new, int(near) if near else None))
    return found


def read_answer(answer: str, text: str) -> str:
    """The text that an answer makes of a text.

    Raises:
        EditError: if it makes none, or if its changes fit nowhere, or in several places.
    """
    if len(_BEGUN.findall(answer)) != len(_BLOCK.findall(answer)):
        raise EditError("The answer has a search/replace block without an end.")
    if _has_changes(answer, text):
        lines, changes = text.split("\n"), changes_in(answer)
        if not any(_ELIDED.fullmatch(line) for line in lines):
            changes = [part for change in changes for part in _without_elisions(change)]
        changes = [change for change in changes if change.search != change.replace]
        if not changes:
            raise EditError("The answer has no change in it.")
        for change in changes:
            at, new = place_of(change, lines)
            lines[at : at + len(change.search)] = new
        return "\n".join(lines)
    if _FENCE.search(answer):
        return _block(answer, text).strip("\n")
    said = " ".join(answer.split()) or "nothing."
    said = said if len(said) <= _MOST_QUOTED else f"{said[:_MOST_QUOTED]} ..."
    raise EditError(f"The model answered without an edit: {said}")


def place_of(change: Change, lines: Sequence[str]) -> tuple[int, list[str]]:
    """Where in a text the lines of a change are, from 0, and what to put there.

    Spaces at the ends of lines do not matter, nor that all are indented less or more.

    Raises:
        EditError: if they are nowhere, or in several places and the change does not tell which.
    """
    if not "".join(change.search).strip():
        raise EditError("The answer adds lines without saying where.")
    size = len(change.search)
    found = [
        (at, shift)
        for at in range(len(lines) - size + 1)
        if (shift := _indented(lines[at : at + size], change.search)) is not None
    ]
    found = [one for one in found if one[1] == ("", "")] or found
    if change.near is not None:
        found = sorted(found, key=lambda one: abs(one[0] + 1 - (change.near or 0)))[:1]
    if len(found) == 1:
        at, (less, more) = found[0]
        as_before = dict(zip(change.search, lines[at : at + size], strict=True))
        return at, [
            as_before.get(line, f"{more}{line.removeprefix(less)}" if line else line)
            for line in change.replace
        ]
    where = f"in {len(found)} places" if found else "nowhere in the text"
    first = next(line.strip() for line in change.search if line.strip())
    raise EditError(f"The answer replaces lines that are {where}; they begin with {first!r}.")


def _has_changes(answer: str, text: str) -> bool:
    """Whether an answer has search/replace blocks or a diff."""
    opened = _FENCE.search(answer)
    if _BEGUN.search(answer) or (opened and opened[2].strip() == "diff"):
        return True
    return _DIFF.match(_block(answer, "").lstrip("\n")) is not None and not _DIFF.match(text)


def _indented(lines: Sequence[str], search: Sequence[str]) -> tuple[str, str] | None:
    """The indentation that lines have less, and more, than others, if it is the same in all and
    the rest is equal."""
    shifts = set()
    for line, wanted in zip(lines, search, strict=True):
        if line.strip() != wanted.strip():
            return None
        if line.strip():
            has, given = (it[: len(it) - len(it.lstrip())] for it in (line, wanted))
            if not (has.startswith(given) or given.startswith(has)):
                return None
            shifts.add((given[len(has) :], has[len(given) :]))
    return shifts.pop() if len(shifts) == 1 else None


def _without_elisions(change: Change) -> list[Change]:
    """The changes between lines `...` that are in both halves, where these stand for any lines."""
    old, new = _split(change.search), _split(change.replace)
    if len(old) != len(new) or len(old) == 1:
        return [change]
    return [Change(*pair, change.near) for pair in zip(old, new, strict=True)]


def _split(lines: Sequence[str]) -> list[tuple[str, ...]]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if _ELIDED.fullmatch(line):
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [tuple(piece) for piece in pieces]


@lru_cache(maxsize=1)
def _fence_for(text: str) -> str:
    """The marks of a block that can hold a text."""
    longest = max((len(found[1]) for found in _FENCE.finditer(text)), default=2)
    return "`" * (longest + 1)


def _block(answer: str, text: str) -> str:
    """What is in the first fenced block so far, or the answer itself if there is none. Blocks in it
    are of it; where the text has some itself, the last mark that may end it does."""
    opened = _FENCE.search(answer)
    if opened is None:
        return answer
    inside, depth, ends = answer[opened.end() + 1 :], 0, list[int]()
    for mark in _FENCE.finditer(inside):
        if not mark[1].startswith(opened[1]):
            continue
        if mark[2].strip():
            depth += 1
        elif depth:
            depth -= 1
        else:
            ends.append(mark.start())
    return inside[: ends[0 if _fence_for(text) == "```" else -1]] if ends else inside


def _lines(text: str) -> tuple[str, ...]:
    return tuple(text.split("\n")[:-1])
