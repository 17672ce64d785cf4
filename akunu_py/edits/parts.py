"""Parts of a text: the lines that an edit is about, found by number, by function or by section."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent
from typing import Final
from warnings import catch_warnings, simplefilter

from akunu_py.errors import EditError, InvalidRequestError

_QUOTED: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|'([^'\n]+)'")
_WORD: Final = re.compile(r"\w{2,}")
NO_PYTHON: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Part:
    """Consecutive lines of a text, without empty ones around them.

    Attributes:
        start, end: where they are in the text, without the last line break.
        line: the number of the first, from 1.
        indent: what all of them begin with; a model sees them without it.
        text: the lines, as a model sees them.
    """

    start: int
    end: int
    line: int
    indent: str
    text: str

    @classmethod
    def of(cls, text: str, start: int, end: int) -> "Part":
        """The lines between two places of a text."""
        raw = text[start:end]
        start += len(raw) - len(raw.lstrip("\n"))
        raw = raw.strip("\n")
        shown = dedent(raw)
        indent = raw.removesuffix(raw.lstrip(" \t")).removesuffix(
            shown.removesuffix(shown.lstrip(" \t"))
        )
        first, end = text.count("\n", 0, start) + 1, start + len(raw)
        part = cls(start, end, first, indent, shown)
        return part if part.in_place(shown) == raw else cls(start, end, first, "", raw)

    def in_place(self, text: str) -> str:
        """Lines like those that a model sees, as they stand in the text."""
        return "\n".join(self.indent + line if line else "" for line in text.split("\n"))


def splice(text: str, changed: Iterable[tuple[Part, str]]) -> str:
    """A text with other lines in place of some of its parts, which are in order."""
    pieces, at = [], 0
    for part, lines in changed:
        pieces += [text[at : part.start], part.in_place(lines)]
        at = part.end
    return "".join([*pieces, text[at:]])


def parse_python(text: str) -> ast.Module:
    """The syntax tree of Python; one of `NO_PYTHON` if it is none."""
    with catch_warnings():
        simplefilter("ignore")  # what it warns of is the text's own
        return ast.parse(text)


def definitions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, _Definition]]:
    """The functions and classes of a syntax tree, each with its name and those around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            yield f"{inside}{node.name}", node
            yield from definitions(node, f"{inside}{node.name}.")
        else:
            yield from definitions(node, inside)


def lines_part(name: str, text: str, first: int, last: int) -> Part:
    """The lines with these numbers; an `InvalidRequestError` if there are none."""
    starts = line_starts(text)
    most = len(starts) - text.endswith("\n")
    if not 1 <= first <= last or first > most:
        raise InvalidRequestError(
            f"{name} has {most} lines, so there are no `lines` {first}:{last}."
        )
    return Part.of(text, starts[first - 1], [*starts, len(text)][min(last, most)])


def function_part(name: str, text: str, wanted: str) -> Part:
    """The function or class of this name, or of this one in a class: `Class.method`; an
    `InvalidRequestError` if there is not exactly one."""
    try:
        tree = parse_python(text)
    except NO_PYTHON:
        raise InvalidRequestError(
            f"{name} is not valid Python, the only language in which a `function` is found by "
            "name; name its `lines` instead."
        ) from None
    known = list(definitions(tree))
    found = [node for one, node in known if f".{one}".endswith(f".{wanted}")]
    if len(found) != 1:
        names = [one for one, _ in known if not found or one.endswith(wanted)]
        listed = f"{', '.join(names[:8])}{' ...' * (len(names) > 8)}"
        raise InvalidRequestError(
            f"{name} has {len(found) or 'no'} functions {wanted}; it has {listed or 'none'}."
        )
    starts = line_starts(text)
    return Part.of(text, starts[_first_line(found[0]) - 1], _end_of(found[0], starts, text))


def windows(
    name: str, text: str, whole: Part, instruction: str, fits: Callable[[Part], bool]
) -> list[Part]:
    """The parts of a part that an instruction concerns: all of it if it fits a request, else
    functions or sections with what the instruction quotes, or, if it quotes nothing of the text,
    with its rarest word.

    Raises:
        EditError: if it says nothing of the text, or one of them does not fit.
    """
    if fits(whole):
        return [whole]
    places = [place for place in _sections(text) if whole.start < place < whole.end]
    sections = [
        (start, end)
        for start, end in pairwise([whole.start, *places, whole.end])
        if text[start:end].strip()
    ]
    concerned = _concerned([text[start:end] for start, end in sections], instruction)
    found: list[Part] = []
    for (start, end), is_concerned in zip(sections, concerned, strict=True):
        if not is_concerned:
            continue
        part = Part.of(text, start, end)
        before = found[-1] if found else None
        if before and not text[before.end : part.start].strip():
            joined = Part.of(text, before.start, part.end)
            if fits(joined):
                found[-1] = joined
                continue
        if not fits(part):
            last = part.line + part.text.count("\n")
            raise EditError(
                f"{name} is too long for the model's context, and so are its lines "
                f"{part.line} to {last} alone; name fewer `lines`."
            )
        found.append(part)
    if not found:
        raise EditError(
            f"{name} is too long for the model's context, and the instruction has no word of it; "
            "name a `function` or `lines`."
        )
    return found


def line_starts(text: str) -> list[int]:
    """Where the lines of a text begin."""
    return [0, *(found.end() for found in re.finditer("\n", text))]


def _first_line(node: _Definition) -> int:
    return min(each.lineno for each in (node, *node.decorator_list))


def _end_of(node: ast.stmt, starts: Sequence[int], text: str) -> int:
    return [*starts, len(text)][node.end_lineno or node.lineno]


def _sections(text: str) -> Iterator[int]:
    """Where functions, methods and sections begin: after the one before, with their comments."""
    starts = line_starts(text)
    try:
        body = parse_python(text).body
    except NO_PYTHON:
        for before, start in pairwise(starts):
            begins = text[start : start + 1]
            if begins == "#" or (begins.strip() and not text[before:start].strip()):
                yield start
        return
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from (_end_of(each, starts, text) for each in node.body[:-1])
        yield _end_of(node, starts, text)


def _concerned(sections: Sequence[str], instruction: str) -> list[bool]:
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(instruction)]
    everything = "\n".join(sections)
    known = [words for words in quoted if words in everything]
    if not known:
        words = _WORD.findall(_QUOTED.sub(" ", instruction))
        counts = {
            word: count
            for word in words
            if (count := sum(_has(section, word) for section in sections))
        }
        known = [min(counts, key=lambda word: counts[word])] if counts else []
    return [any(_has(section, words) for words in known) for section in sections]


def _has(section: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", section) is not None
