"""Functions cut out of source files: what mechanical edits are made from.

A function is kept when it stands on its own: plain ASCII, of moderate length, parsable after its
indentation is taken off, and not a near-copy of one seen before. Some are made harder to copy, with
lines much like others of theirs, or with comments: an answer then has to tell from what stands
further before which of the lines it has come to.
"""

import ast
import hashlib
import keyword
import random
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from models.training.corpus import SourceFile

MIN_LINES, MAX_LINES = 3, 60
MAX_LINE_LENGTH = 120
_MAX_BRIEF = 80
_SIMPLE = (ast.Return, ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)
_COMMENT = re.compile(r"#.*")
_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"[A-Za-z_]\w*|\d+")
_BLANK = re.compile(r"\s+")
_SAID = re.compile(r"^ *# ?(\w.*)$", re.MULTILINE)
_MOST_PLACES, _MOST_COPIES = 5, 3
_BEHIND_IT = 0.6  # of lines are followed by their copies; those of others stand anywhere
_SAME = 0.2  # of copies are the same line once more
_MOST_COMMENTED, _MOST_COMMENT_LINES = 4, 3
_BEHIND_CODE, _OF_CODE = 0.25, 0.25  # of comments stand behind code, and are a line of the function


@dataclass(frozen=True)
class Function:
    """One function at indentation zero, decorators included, without a final line break."""

    text: str
    is_method: bool
    origin: str

    @cached_property
    def node(self) -> ast.FunctionDef | ast.AsyncFunctionDef:
        """The syntax tree; its columns count from `text`."""
        node = ast.parse(self.text).body[0]
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            raise ValueError("the text of a Function must define exactly one function")
        return node


def outline(text: str) -> bytes:
    """A hash that near-copies share: comments, strings, spacing and names' spelling aside."""
    plain = _COMMENT.sub("", _STRING.sub("s", text))
    order: dict[str, str] = {}
    numbered = _NAME.sub(lambda m: order.setdefault(m.group(), str(len(order))), plain)
    return hashlib.blake2b(_BLANK.sub(" ", numbered).encode(), digest_size=8).digest()


def is_function(text: str) -> bool:
    """True where `text` parses as exactly one function definition."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return len(body) == 1 and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef)


def parses(text: str) -> bool:
    """True for Python, also if all of it is indented."""
    try:
        ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return False
    return True


def functions_of(file: SourceFile) -> Iterator[Function]:
    """Every usable function, and method of a class, at the top of a file."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = file.text.split("\n")
    for holder in tree.body:
        is_method = isinstance(holder, ast.ClassDef)
        for node in holder.body if isinstance(holder, ast.ClassDef) else [holder]:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            count = (node.end_lineno or first) - first + 1
            if not MIN_LINES <= count <= MAX_LINES:
                continue
            own = lines[first - 1 : first - 1 + count]
            text = textwrap.dedent("\n".join(line.rstrip() for line in own))
            usable = text.isascii() and "\t" not in text and "```" not in text
            if usable and max(map(len, own)) <= MAX_LINE_LENGTH and is_function(text):
                yield Function(text, is_method, f"{file.package}/{file.path}:{node.name}")


def brief_forms(function: Function) -> Iterator[Function]:
    """The function on two lines and on one, without its docstring, where it does one thing.

    People who try a model out type such functions; files hardly have them.
    """
    node = function.node
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], _SIMPLE) or node.decorator_list:
        return
    lines = function.text.split("\n")
    first = node.body[0]
    before = lines[first.lineno - 1].encode()[: first.col_offset].decode()  # `ast` counts bytes
    header = "\n".join([*lines[: first.lineno - 1], before]).rstrip()
    statement = ast.get_source_segment(function.text, body[0]) or ""
    one_line = f"{header} {statement}"
    if header.endswith(":") and "\n" not in one_line and len(one_line) <= _MAX_BRIEF:
        for text in (one_line, f"{header}\n    {statement}"):
            yield replace(function, text=text)


def distinct(functions: Iterable[Function], *, unlike: Iterable[Function] = ()) -> list[Function]:
    """Functions without near-copies of each other or of any of `unlike`."""
    seen = {outline(function.text) for function in unlike}
    kept = []
    for function in functions:
        key = outline(function.text)
        if key not in seen:
            seen.add(key)
            kept.append(function)
    return kept


def docstrings(functions: Iterable[Function]) -> list[str]:
    """First sentences that say what a function does."""
    found = (ast.get_docstring(function.node) or "" for function in functions)
    lines = (text.split("\n")[0] for text in found)
    return sorted({line for line in lines if 12 <= len(line) <= 70 and line.isascii()})


def with_similar_lines(function: Function, rng: random.Random) -> Function:
    """The function with copies of a few of its lines, in most of which one word is another.

    It still parses, and means nothing. Lines that cannot be repeated are left alone.
    """
    lines = function.text.split("\n")
    words = [word for word in _WORD.findall(function.text) if not keyword.iskeyword(word)]
    for _ in range(rng.randint(2, _MOST_PLACES)):
        at = rng.randrange(len(lines))
        if not lines[at].startswith(" ") or lines[at].lstrip()[0] in "\"'":
            continue  # the header, or a docstring
        depth = _indent(lines[at])
        indented = [i for i, line in enumerate(lines) if line and _indent(line) == depth]
        copies = [_varied(lines[at], words, rng) for _ in range(rng.randint(1, _MOST_COPIES))]
        behind = at if rng.random() < _BEHIND_IT else rng.choice(indented)
        longer = [*lines[: behind + 1], *copies, *lines[behind + 1 :]]
        if len(longer) <= MAX_LINES and is_function("\n".join(longer)):
            lines = longer
    return replace(function, text="\n".join(lines))


def comments_of(functions: Iterable[Function]) -> list[str]:
    """The words of comments on lines of their own that begin with a letter or a digit."""
    return [words for function in functions for words in _SAID.findall(function.text)]


def with_comments(function: Function, comments: Sequence[str], rng: random.Random) -> Function:
    """The function with comments in front of a few of its statements, or behind them."""
    lines = function.text.split("\n")
    code = [s for line in lines if (s := line.strip()) and s[0] not in "#\"'"]
    begin = function.node.lineno
    one_line = {
        statement.lineno - 1: statement.lineno == statement.end_lineno
        for one in function.node.body[ast.get_docstring(function.node) is not None :]
        for statement in ast.walk(one)
        if isinstance(statement, ast.stmt) and statement.lineno > begin
    }
    count = min(len(one_line), rng.randint(1, _MOST_COMMENTED))
    for row in sorted(rng.sample(sorted(one_line), count), reverse=True):
        behind = one_line[row] and rng.random() < _BEHIND_CODE
        said = [
            rng.choice(code) if rng.random() < _OF_CODE else rng.choice(comments)
            for _ in range(1 if behind else rng.randint(1, _MOST_COMMENT_LINES))
        ]
        indent = " " * _indent(lines[row])
        added = [f"{lines[row]}  # {said[0]}"] if behind else [f"{indent}# {s}" for s in said]
        longer = [*lines[:row], *added, *lines[row + behind :]]
        fits = len(longer) <= MAX_LINES and max(map(len, added)) <= MAX_LINE_LENGTH
        if fits and is_function("\n".join(longer)):
            lines = longer
    return replace(function, text="\n".join(lines))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _varied(line: str, words: list[str], rng: random.Random) -> str:
    """The line with one of its words exchanged, as a rule."""
    found = [word for word in _WORD.finditer(line) if not keyword.iskeyword(word[0])]
    if not found or rng.random() < _SAME:
        return line
    old = rng.choice(found)
    number = old[0].isdigit()
    new = str(rng.randrange(20)) if number else rng.choice([w for w in words if not w[0].isdigit()])
    return f"{line[: old.start()]}{new}{line[old.end() :]}"
