"""Functions cut out of source files: what mechanical edits are made from.

A function is kept when it stands on its own: plain ASCII, of moderate length, parsable after
its indentation is taken off, and not a near-copy of one seen before.
"""

from __future__ import annotations

import ast
import hashlib
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from models.training.corpus import SourceFile

MIN_LINES, MAX_LINES = 3, 60
MAX_LINE_LENGTH = 120
MAX_BRIEF = 80

_SIMPLE = (ast.Return, ast.Assign, ast.AugAssign, ast.Expr, ast.Raise)
_COMMENT = re.compile(r"#.*")
_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*'", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_BLANK = re.compile(r"\s+")


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
    numbered = _WORD.sub(lambda m: order.setdefault(m.group(), str(len(order))), plain)
    return hashlib.blake2b(_BLANK.sub(" ", numbered).encode(), digest_size=8).digest()


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Top-level functions and the methods of top-level classes."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, False
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield inner, True


def functions_of(file: SourceFile) -> Iterator[Function]:
    """Every usable function of a file, in order."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError):
        return
    lines = file.text.split("\n")
    for node, is_method in _definitions(tree):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])  # type: ignore[attr-defined]
        count = (node.end_lineno or first) - first + 1  # type: ignore[attr-defined]
        if not MIN_LINES <= count <= MAX_LINES:
            continue
        own = lines[first - 1 : first - 1 + count]
        text = textwrap.dedent("\n".join(line.rstrip() for line in own))
        usable = text.isascii() and "\t" not in text and "```" not in text
        if usable and max(map(len, own)) <= MAX_LINE_LENGTH and is_function(text):
            name = node.name  # type: ignore[attr-defined]
            yield Function(text, is_method, f"{file.package}/{file.path}:{name}")


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
    header = "\n".join([*lines[: first.lineno - 1], before])
    header, statement = header.rstrip(), ast.get_source_segment(function.text, body[0]) or ""
    one_line = f"{header} {statement}"
    if header.endswith(":") and "\n" not in one_line and len(one_line) <= MAX_BRIEF:
        for text in (one_line, f"{header}\n    {statement}"):
            yield Function(text, function.is_method, function.origin)


def is_function(text: str) -> bool:
    """True where `text` parses as exactly one function definition."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return len(body) == 1 and isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef)


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
