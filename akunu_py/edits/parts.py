"""Parts of a text: the lines that an edit is about, found by number, by function or by section."""

import ast
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, pairwise
from symtable import symtable
from textwrap import dedent
from typing import Final
from warnings import catch_warnings, simplefilter

from akunu_py.errors import EditError, InvalidRequestError

NO_PYTHON: Final = (SyntaxError, ValueError, RecursionError, MemoryError)

_QUOTED: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|'([^'\n]+)'")
_MOST_NAMED: Final = 8
_MOST_INDENT: Final = 200
"""The most characters of indentation that a model does not see; each line of its answer gets it."""
_PIECE: Final = re.compile(r"\w+|[^\w \t]")
MOST_PIECES: Final = 1 << 16
"""The most words and signs of Python to parse: 250 KB as a rule, and 0.1 to 0.2 s, in which no
other thread runs."""
_MOST_COMPARED: Final = 1 << 26
"""The most characters of a text, times phrases to look for in it: 1 s."""
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Part:
    """Consecutive lines of a text, from `start` to `end` without the last line break and without
    empty ones around them. A model sees `text`, without the `indent` common to all.
    """

    start: int
    end: int
    indent: str
    text: str

    @classmethod
    def of(cls, text: str, start: int, end: int) -> "Part":
        """The lines between two places of a text."""
        raw = text[start:end].strip("\n")
        start = text.index(raw, start)
        shown = dedent(raw) if raw[:_MOST_INDENT].strip() else raw
        indent = raw[: len(raw) - len(raw.lstrip(" \t")) - len(shown) + len(shown.lstrip(" \t"))]
        part = cls(start, start + len(raw), indent, shown)
        return part if part.in_place(shown) == raw else cls(start, part.end, "", raw)

    def in_place(self, text: str) -> str:
        """Lines like those that a model sees, as they stand in the text."""
        return "\n".join(self.indent + line if line else "" for line in text.split("\n"))

    def answered(self, text: str) -> str:
        """Lines of an answer, as they stand in the text; they may have its indentation already."""
        lines = [line for line in text.split("\n") if line.strip()]
        is_placed = all(line.startswith(self.indent) for line in lines)
        return text if is_placed else self.in_place(text)


def splice(text: str, changed: Iterable[tuple[Part, str]]) -> str:
    """A text with others in place of some of its parts, which are in order."""
    pieces, at = [], 0
    for part, lines in changed:
        pieces += [text[at : part.start], lines]
        at = part.end
    return "".join([*pieces, text[at:]])


def parse_python(text: str) -> ast.Module:
    """The syntax tree of Python; one of `NO_PYTHON` if it is none."""
    with catch_warnings():
        simplefilter("ignore")  # what it warns of is the text's own
        symtable(text, "", "exec")  # finds repeated arguments, which the parser takes
        return ast.parse(text)


def definitions(tree: ast.AST) -> Iterator[tuple[tuple[str, ...], _Definition]]:
    """The functions and classes of a syntax tree, each with the names of those around it and its
    own."""
    left: list[tuple[tuple[str, ...], ast.AST]] = [((), tree)]
    while left:
        names, node = left.pop()
        if isinstance(node, _Definition):
            names = (*names, node.name)
            yield names, node
        left += ((names, child) for child in reversed(list(ast.iter_child_nodes(node))))


def first_line(node: _Definition) -> int:
    """The number of the first line of a definition or of its decorators."""
    return min(each.lineno for each in (node, *node.decorator_list))


def lines_part(name: str, text: str, first: int, last: int) -> Part:
    """The lines with these numbers; an `InvalidRequestError` if there are none."""
    starts = _line_starts(text)
    most = len(starts) - 1
    if not 1 <= first <= min(last, most):
        lines = "1 line" if most == 1 else f"{most} lines"
        raise InvalidRequestError(f"{name} has {lines}; there are no `lines` {first}:{last}.")
    return Part.of(text, starts[first - 1], starts[min(last, most)])


def function_part(name: str, text: str, wanted: str) -> Part:
    """The function or class of this name, or of this one in a class: `Class.method`; an
    `InvalidRequestError` if there is not exactly one."""
    try:
        known = list(definitions(_parse_lines(text)))
    except NO_PYTHON:
        raise InvalidRequestError(
            "`function` works only in valid Python without carriage returns, of up to "
            f"{MOST_PIECES:,} words and signs, which {name} is not; give its `lines`."
        ) from None
    if not known:
        raise InvalidRequestError(f"{name} has no functions or classes.")
    names = tuple(wanted.split("."))
    found = [one for one in known if one[0] == names]
    found = found or [one for one in known if one[0][-len(names) :] == names]
    if len(found) != 1:
        listed = ", ".join(".".join(one) for one, _ in (found or known)[:_MOST_NAMED])
        functions = f"{len(found)} functions" if found else "no function"
        raise InvalidRequestError(f"{name} has {functions} {wanted}; it has {listed}.")
    node = found[0][1]
    starts = _line_starts(text)
    first = first_line(node)
    return Part.of(text, starts[first - 1], starts[node.end_lineno or first])


def windows(
    text: str, whole: Part, instruction: str, fits: Callable[[Part], bool]
) -> Iterator[Part]:
    """The parts of a part that an instruction concerns: all of it if it fits a request, else the
    functions or sections with what the instruction quotes, or, if it quotes nothing of the text,
    with the word of it that the fewest of them have. Raises EditError if no word is found, or a
    part does not fit.
    """
    if fits(whole):
        yield whole
        return
    places = sorted({place for place in _sections(text) if whole.start < place < whole.end})
    bounds = [whole.start, *places, whole.end]
    concerned = _concerned([text[start:end] for start, end in pairwise(bounds)], instruction)
    if not concerned:
        raise EditError(
            "The text is too long for the model's context, and the instruction names no word of "
            "it; give a `function` or `lines`."
        )

    def part(first: int, size: int) -> Part:
        return Part.of(text, bounds[first], bounds[first + size])

    def part_fits(first: int, size: int) -> bool:
        return fits(part(first, size))

    for _, group in groupby(enumerate(concerned), lambda each: each[1] - each[0]):
        run = [section for _, section in group]  # they follow each other
        first, last = run[0], run[-1] + 1
        while first < last:
            if not part_fits(first, 1):
                line = text.count("\n", 0, part(first, 1).start) + 1
                raise EditError(
                    "The model's context is too short even for the function or section from line "
                    f"{line} on; give fewer `lines`."
                )
            size = _most(last - first, partial(part_fits, first))
            yield part(first, size)
            first += size


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest size that fits: size 1 does, and all that are smaller than one that does. At most
    twice the result is tried."""
    size = 1
    while 2 * size <= limit and fits(2 * size):
        size *= 2
    larger = range(size + 1, min(2 * size - 1, limit) + 1)
    return size + bisect_left(larger, True, key=lambda each: not fits(each))


def _concerned(sections: Sequence[str], instruction: str) -> list[int]:
    """The numbers of the sections that an instruction concerns; see `windows`."""
    quoted = {_marked(next(filter(None, found))) for found in _QUOTED.findall(instruction)}
    if len(quoted) * sum(map(len, sections)) > _MOST_COMPARED:
        raise EditError(
            "The instruction quotes too much for a text that is longer than the model's context; "
            "give a `function` or `lines`."
        )
    marked = enumerate(map(_marked, sections if quoted else ()))
    if found := [number for number, text in marked if any(words in text for words in quoted)]:
        return found
    places = {word: list[int]() for word in re.findall(r"\w{2,}", instruction)}
    for number, section in enumerate(sections):
        for word in {one[0] for one in re.finditer(r"\w+", section)} & places.keys():
            places[word].append(number)
    return min(filter(None, places.values()), key=len, default=[])


def _marked(text: str) -> str:
    """A text in which a plain search finds whole words only: both ends of each have a mark."""
    return re.sub(r"\b", "\0", text)


def is_quickly_parsed(text: str) -> bool:
    """Whether a text has at most `MOST_PIECES`."""
    return next(islice(_PIECE.finditer(text), MOST_PIECES, None), None) is None


def _parse_lines(text: str) -> ast.Module:
    """As `parse_python`; a `ValueError` if a text is too long, or if a carriage return, which is a
    line end to Python and none in a `Part`, makes the numbers of lines differ."""
    if "\r" in text or not is_quickly_parsed(text):
        raise ValueError("carriage return, or too long")
    return parse_python(text)


def _line_starts(text: str) -> list[int]:
    """Where the lines of a text begin, and where the last one ends."""
    starts = [0, *(found.end() for found in re.finditer("\n", text))]
    return starts if text.endswith("\n") else [*starts, len(text)]


def _sections(text: str) -> Iterator[int]:
    """Where functions, methods and sections begin: after the one before, with their comments."""
    starts = _line_starts(text)
    try:
        body = _parse_lines(text).body
    except NO_PYTHON:
        for before, start in pairwise(starts):
            begins = text[start : start + 1]
            if begins == "#" or (begins.strip() and not text[before:start].strip()):
                yield start
        return
    for node in body:
        for each in (node, *(node.body if isinstance(node, ast.ClassDef) else ())):
            yield starts[each.end_lineno or each.lineno]
