"""Requests for edits, and reading the answers, in one of three formats.

`whole`: the text with its changes, in a fenced block. `blocks`: search/replace blocks, as aider's
models write them. `diff`: a unified diff, whose line numbers may be wrong, as models cannot count.
An answer is read by the format it has, whichever was asked for.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
_MERGE: Final = (
    "Apply this update, in which comments such as `... existing code ...` stand for lines that "
    "stay as they are:"
)
_INTO: Final = "to this text:"
_FENCE: Final = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)([^`\n]*+)$", re.MULTILINE)
_EDGE: Final = re.compile(r"^(?:(<{5,9} ?SEARCH>?[ \t]*\n)|>{5,9} ?REPLACE[ \t]*$)", re.MULTILINE)
_MIDDLE: Final = re.compile(r"={5,9}[ \t]*")
_BEGUN: Final = re.compile(r"^<{5,9} ?SEARCH", re.MULTILINE)
_DIFF: Final = re.compile(r"\n*(?:--- .*\n\+\+\+ |@@[ \n]|diff --git )")
_LABEL: Final = re.compile(r"\s*(?:diff|patch)\b")
_FILES: Final = re.compile(r"^--- .*\n\+\+\+ .*$", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@(?: -(\d{1,9}))?.*", re.MULTILINE)
_ELIDED: Final = re.compile(r"\s*\.\.\.\s*")
_FOREIGN: Final = "\r\0\ufeff"
"""What no edit adds: it would be read as a line end, as the end of a text, or not at all."""
_MOST_QUOTED: Final = 300
_MOST_COMPARED: Final = 1 << 16
"""The most lines that are compared to find the place of a change: 0.03 s."""


@dataclass(frozen=True)
class Change:
    """Lines to look for, and lines to put in their place; `near` is the number of the first, from
    1, if the answer says it."""

    search: tuple[str, ...]
    replace: tuple[str, ...]
    near: int | None = None


def question(
    text: str, instruction: str, name: str, answer_format: str, update: str = ""
) -> "list[Message]":
    """The messages that ask for an edit of a text: one of the system, and the user's. An `update`
    is a sketch of the edit, which leaves out what stays."""
    language = os.path.splitext(name)[1][1:].lower()
    language = "python" if language in ("py", "pyi") else language
    fence = _fence_for(f"{text}\n{update}")
    if update.strip():
        lines = update.strip("\n")
        sketch = f"{fence}{language}\n{lines}\n{fence}"
        instruction = f"{instruction.strip()}\n{_MERGE}\n{sketch}\n{_INTO}".strip()
    return [
        {"role": "system", "content": f"Answer a request for an edit with {_ASKED[answer_format]}"},
        {"role": "user", "content": f"{instruction.strip()}\n{fence}{language}\n{text}\n{fence}"},
    ]


def references(text: str, answer_format: str) -> tuple[str, ...]:
    """What an answer may repeat beside the question: the lines of a diff have a mark each."""
    if answer_format != DIFF:
        return ()
    return tuple("\n".join(mark + line for line in text.split("\n")) for mark in "- ")


def whole_lines(answer: Iterable[str | None]) -> Iterator[str | None]:
    """The lines of an answer with the whole text, while those of the answer come, but for empty
    ones at its ends; not all of them if a mark may end its block, none if it has another format.
    None, while a line is not there yet, is passed on."""
    opened, depth, waiting = None, 0, list[str]()
    for line in answer:
        if line is None:
            yield None
            continue
        mark = _FENCE.fullmatch(line)
        if opened is None:
            opened = mark
            continue
        if mark and mark[1].startswith(opened[1]):
            depth += 1 if mark[2].strip() else -1
        begun = "\n".join([*waiting[:2], line])
        if depth < 0 or _BEGUN.match(line) or _LABEL.match(opened[2]) or _DIFF.match(begun):
            return
        if _margin(opened[0]):
            return
        if not (line or waiting):
            continue
        waiting.append(line)
        if line and len(waiting) > 1:  # a single one may be the name of a file, or begin a diff
            yield from waiting[:-1]
            waiting = waiting[-1:]


def changes_in(answer: str) -> list[Change]:
    """The changes of an answer with search/replace blocks or a diff. Raises EditError if it is not
    clear where they begin and end.
    """
    if _BEGUN.search(answer):
        return [_halves(block.split("\n")[:-1]) for block in _blocks(answer)]
    found: list[Change] = []
    diff = _FILES.sub(
        "@@", _block(answer, [it for it in _FENCE.finditer(answer) if it[0][0] > " "])
    )
    _, *hunks = _HUNK.split(diff)  # a number and lines for each, in turns
    for near, lines in zip(hunks[::2], hunks[1::2], strict=True):
        hunk = [it if it[:1] in "+-" and it else f" {it.removeprefix(' ')}"
                for it in lines.rstrip("\n").split("\n")[1:] if it[:1] != "\\"]  # fmt: skip
        old, new = (tuple(it[1:] for it in hunk if it[0] != other) for other in "+-")
        found.append(Change(old, new, int(near) if near else None))
    return found


def read_answer(answer: str, text: str) -> str:
    """The text that an answer makes of a text. Raises EditError if it makes none, or if its changes
    fit nowhere, or in several places.
    """
    answer = answer.replace("\r\n", "\n")
    opened = _FENCE.search(answer)
    if _has_changes(answer, text):
        if len(_BEGUN.findall(answer)) != len(_blocks(answer)):
            raise EditError("The answer has a search/replace block without an end.")
        new = _changed(text, changes_in(answer))
    elif opened:
        new = _whole(answer, text)
    else:
        said = " ".join(answer.split()) or "nothing."
        said = said if len(said) <= _MOST_QUOTED else f"{said[:_MOST_QUOTED]} ..."
        raise EditError(f"The model answered without an edit: {said}")
    if found := [it for it in _FOREIGN if it in new and it not in text]:
        raise EditError(f"The answer adds the character {found[0]!r}, which is not in the text.")
    return new


def place_of(change: Change, lines: Sequence[str]) -> tuple[int, list[str]]:
    """Where in a text the lines of a change are, from 0, and what to put there. Spaces at the ends
    of lines do not matter, nor that all are indented less or more. Raises EditError if they are
    nowhere, or in several places and the change does not tell which.
    """
    if not "".join(change.search).strip():
        raise EditError("The answer adds lines without saying where.")
    size = len(change.search)
    first = next(line.strip() for line in change.search if line.strip())
    wanted, stripped = ([line.strip() for line in it] for it in (change.search, lines))
    places = [
        at
        for at in range(len(lines) - size + 1)
        if stripped[at] == wanted[0] and stripped[at : at + size] == wanted
    ]
    if len(places) * size > _MOST_COMPARED:
        raise EditError(
            f"The answer replaces lines that are in too many places; they begin with {first!r}."
        )
    found = [
        (at, shift)
        for at in places
        if (shift := _indented(lines[at : at + size], change.search)) is not None
    ]
    found = [one for one in found if one[1] == ("", "")] or found
    if (near := change.near) is not None:
        nearest = min((abs(at + 1 - near) for at, _ in found), default=0)
        found = [one for one in found if abs(one[0] + 1 - near) == nearest]
    if len(found) == 1:
        at, (less, more) = found[0]
        as_before = dict(zip(change.search, lines[at : at + size], strict=True))
        return at, [
            as_before.get(line, f"{more}{line.removeprefix(less)}" if line else line)
            for line in change.replace
        ]
    where = f"in {len(found)} places" if found else "nowhere in the text"
    raise EditError(f"The answer replaces lines that are {where}; they begin with {first!r}.")


def _has_changes(answer: str, text: str) -> bool:
    if _BEGUN.search(answer) and not _BEGUN.search(text):
        return True
    opened = _FENCE.search(answer)
    if _DIFF.match(text):
        return False
    if _DIFF.match(answer) or (opened and _DIFF.match(answer, opened.end() + 1)):
        return True
    return bool(opened and _LABEL.match(opened[2]) and not _HUNK.search(text))


def _changed(text: str, changes: Iterable[Change]) -> str:
    lines = text.split("\n")
    size = len(lines)
    has_elisions = any(_ELIDED.fullmatch(line) for line in lines)
    changes = [change for change in changes if change.search != change.replace]
    if not changes:
        raise EditError("The answer contains no change.")
    for change in changes:
        near = change.near and change.near + len(lines) - size
        after = 0
        for piece in [change] if has_elisions else _without_elisions(change):
            at, new = place_of(replace(piece, near=1 if after else near), lines[after:])
            at += after
            elided, margin = lines[after:at] if after else [], _margin(lines[at])
            if any(it.strip() and _margin(it) < margin for it in elided):
                raise EditError("The answer elides the end of a function or section with `...`.")
            lines[at : at + len(piece.search)] = new
            after = at + len(new)
    return "\n".join(lines)


def _whole(answer: str, text: str) -> str:
    marks = list(_FENCE.finditer(answer))
    inside = _block(answer, marks, [it[0] for it in _FENCE.finditer(text)])
    own = {line.strip() for line in text.split("\n")} - {""}
    around = answer[: marks[0].start()], answer[marks[-1].end() :]
    if any(line.strip() in own for it in around for line in it.split("\n")):
        raise EditError("The answer has lines of the text outside of its code block.")
    if _BEGUN.match(inside) and not _BEGUN.match(text):
        raise EditError("The text has marks of search/replace blocks; use the format `whole`.")
    if not inside.strip():
        raise EditError("The code block of the answer is empty.")
    return inside.strip("\n")


def _indented(lines: Sequence[str], search: Sequence[str]) -> tuple[str, str] | None:
    """The indentation that lines have less, and more, than others, if it is the same in all; the
    rest is equal."""
    shifts = set()
    for line, wanted in zip(lines, search, strict=True):
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
    return [Change(*pair, change.near) for pair in zip(old, new, strict=True) if any(pair)]


def _split(lines: Sequence[str]) -> list[tuple[str, ...]]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if _ELIDED.fullmatch(line):
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [tuple(piece) for piece in pieces]


def _fence_for(text: str) -> str:
    longest = max((len(found[1]) for found in _FENCE.finditer(text)), default=2)
    return "`" * (longest + 1)


def _block(answer: str, marks: Sequence[re.Match[str]], own: Sequence[str] = ()) -> str:
    """What is in the only fenced block of an answer, or the answer itself if it has none. The marks
    in it are shorter, or those of the text, or pairs that begin with a language."""
    if not marks:
        return answer
    opened, *inside = marks
    if not inside or not _ends(inside[-1], opened):
        raise EditError("The code block of the answer has no end.")
    depth = 0
    for mark in inside[:-1] if [it[0] for it in inside[:-1]] != own else ():
        if mark[1].startswith(opened[1]):
            depth += -1 if _ends(mark, opened) else 1
        if depth < 0:
            break
    if depth:
        raise EditError("The answer has several code blocks, or one with marks that may end it.")
    block = answer[opened.end() + 1 : inside[-1].start()]
    indent = _margin(opened[0])  # as a block in a list has
    return re.sub(rf"^ {{1,{indent}}}", "", block, flags=re.MULTILINE) if indent else block


def _ends(mark: re.Match[str], opened: re.Match[str]) -> bool:
    return mark[1].startswith(opened[1]) and not mark[2].strip()


def _blocks(answer: str) -> list[str]:
    """What is between the marks of search/replace blocks: each ends with the first that may."""
    found, start = list[str](), None
    for edge in _EDGE.finditer(answer):
        if edge[1] is None and start is not None:
            found.append(answer[start : edge.start()])
            start = None
        elif edge[1] is not None and start is None:
            start = edge.end()
    return found


def _halves(lines: Sequence[str]) -> Change:
    places = [at for at, line in enumerate(lines) if _MIDDLE.fullmatch(line)]
    if len(places) != 1:
        raise EditError("It is not clear where the middle of a search/replace block is.")
    return Change(tuple(lines[: places[0]]), tuple(lines[places[0] + 1 :]))


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip())
