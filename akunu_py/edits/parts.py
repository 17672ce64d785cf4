"""Parts of a text: the lines that an edit is about, found by number, by function or by section."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from textwrap import dedent
from typing import Final
from warnings import catch_warnings, simplefilter

from akunu_py.errors import EditError, InvalidRequestError

NO_PYTHON: Final = (SyntaxError, ValueError, RecursionError, MemoryError)

_QUOTED: Final = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|'([^'\n]+)'")
_MOST_NAMED: Final = 8
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
        shown = dedent(raw)
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
        return ast.parse(text)


def definitions(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, _Definition]]:
    """The functions and classes of a syntax tree, each with its name and those around it."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, _Definition):
            yield f"{inside}{node.name}", node
            name = f"{inside}{node.name}."
        yield from definitions(node, name)


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
            "`function` works only in valid Python without carriage returns, which "
            f"{name} is not; give its `lines`."
        ) from None
    if not known:
        raise InvalidRequestError(f"{name} has no functions or classes.")
    found = [node for one, node in known if one == wanted]
    found = found or [node for one, node in known if f".{one}".endswith(f".{wanted}")]
    if len(found) != 1:
        names = [one for one, _ in known if not found or one.endswith(wanted)][:_MOST_NAMED]
        functions = f"{len(found)} functions" if found else "no function"
        raise InvalidRequestError(f"{name} has {functions} {wanted}; it has {', '.join(names)}.")
    starts = _line_starts(text)
    first = min(node.lineno for node in (found[0], *found[0].decorator_list))
    return Part.of(text, starts[first - 1], starts[found[0].end_lineno or first])


def windows(text: str, whole: Part, instruction: str, fits: Callable[[Part], bool]) -> list[Part]:
    """The parts of a part that an instruction concerns: all of it if it fits a request, else the
    functions or sections with what the instruction quotes, or, if it quotes nothing of the text,
    with the word of it that the fewest of them have. Raises EditError if no word is found, or a
    part does not fit.
    """
    if fits(whole):
        return [whole]
    places = sorted({place for place in _sections(text) if whole.start < place < whole.end})
    sections = [
        Part.of(text, start, end) for start, end in pairwise([whole.start, *places, whole.end])
    ]
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(instruction)]
    known = [words for words in quoted if any(_has(one.text, words) for one in sections)]
    if not known:
        words = re.findall(r"\w{2,}", instruction)
        counts = {word: sum(_has(one.text, word) for one in sections) for word in words}
        known = sorted(filter(counts.get, counts), key=lambda word: counts[word])[:1]
    found: list[Part] = []
    for one in sections:
        if not any(_has(one.text, words) for words in known):
            continue
        before = found[-1] if found else None
        if before and not text[before.end : one.start].strip():
            joined = Part.of(text, before.start, one.end)
            if fits(joined):
                found[-1] = joined
                continue
        if not fits(one):
            line = text.count("\n", 0, one.start) + 1
            raise EditError(
                "The model's context is too short even for the function or section from line "
                f"{line} on; give fewer `lines`."
            )
        found.append(one)
    if not found:
        raise EditError(
            "The text is too long for the model's context, and the instruction names no word of "
            "it; give a `function` or `lines`."
        )
    return found


def _parse_lines(text: str) -> ast.Module:
    """As `parse_python`; a `ValueError` if a carriage return, which is a line end to Python and
    none in a `Part`, makes the numbers of lines differ."""
    if "\r" in text:
        raise ValueError("carriage return")
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


def _has(text: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None
