"""An edit: an instruction, the code before, and the one right answer after it.

A maker takes a function and a source of chance and returns an edit of the kind that it is named
after, or None where the function does not lend itself to it. Positions come from `ast`; the text
itself is spliced, so that everything an edit does not concern stays as it was, byte for byte.
"""

import ast
import random
import re
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from models.training.functions import Function
from models.training.phrases import official


@dataclass(frozen=True)
class Edit:
    """`instruction` is a sentence without its full stop."""

    kind: str
    instruction: str
    before: str
    after: str


@dataclass(frozen=True)
class Pool:
    """Words and expressions that edits put in, taken from training source."""

    names: Sequence[str]
    expressions: Sequence[str]


Splice = tuple[int, int, str]
"""Begin and end of what is replaced, and what replaces it; not overlapping another one."""
OWN = ("self", "cls")
PLACES = (" this function", " this code", " the function", " the following code", "", "")
_OPEN = re.compile(r"\s(?:in|into|on|from|to|of|for)$")


def phrase(rng: random.Random, templates: Sequence[str], **words: str) -> str:
    """One of the templates, filled in; ` {it}` becomes words for the code, or at an end nothing."""
    chosen, place = rng.choice(templates), rng.choice(PLACES)
    if not place and not chosen.endswith(" {it}"):
        place = PLACES[0]
    return chosen.replace(" {it}", place).format(**words)


def edit_of(
    function: Function, rng: random.Random, part: str, after: str | Iterable[Splice], **words: str
) -> Edit:
    """The edit that gives `after`, a text or splices of the function's, asked for in the official
    words of `part`, which begins with the kind of edit."""
    text = after if isinstance(after, str) else spliced(function.text, after)
    kind = part.partition(":")[0]
    return Edit(kind, phrase(rng, official(part), **words), function.text, text)


def ends_open(words: str) -> bool:
    """True where the instruction ends with a word that the code must follow."""
    return bool(_OPEN.search(words))


def closed(words: str) -> str:
    """An instruction that no code follows."""
    words = words.replace(" the following code", " this code").removesuffix("\nThe code")
    return f"{words} it" if ends_open(words) else words


class Lines:
    """Turns positions of nodes and tokens into offsets into a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, line: int, column: int) -> int:
        """`line` counts from one, `column` characters from zero, as `tokenize` counts."""
        return self._starts[line - 1] + column

    def start(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        return self._of_bytes(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.arg) -> int:
        """The offset after the node's last character; parsed nodes always have one."""
        return self._of_bytes(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _of_bytes(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column]  # `ast` counts bytes of UTF-8
        return self.offset(line, len(before.decode()))

    def segment(self, node: ast.expr | ast.stmt | ast.arg) -> str:
        return self.text[self.start(node) : self.end(node)]


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """The text with every splice made."""
    for start, end, new in sorted(splices, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def inside_strings(tree: ast.AST) -> list[ast.AST]:
    """Nodes within f-strings, whose positions older interpreters do not report."""
    joined = (node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr))
    return [node for one in joined for node in ast.walk(one)]


def names_inside_strings(tree: ast.AST) -> set[str]:
    """The variables among `inside_strings`."""
    return {node.id for node in inside_strings(tree) if isinstance(node, ast.Name)}


def tokens_of(text: str) -> list[tokenize.TokenInfo]:
    """The tokens of a whole program."""
    return list(tokenize.generate_tokens(StringIO(text).readline))


def has_multiline_string(text: str) -> bool:
    """True where a change of indentation would change a string's value."""
    return any(
        token.start[0] != token.end[0]
        for token in tokens_of(text)
        if token.type not in (tokenize.NEWLINE, tokenize.NL)
    )


def positional(function: Function) -> list[ast.arg]:
    """The parameters that may be given by position."""
    return function.node.args.posonlyargs + function.node.args.args


def docstring_node(function: Function) -> ast.Expr | None:
    """The statement that is the function's docstring."""
    match function.node.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as first:
            return first
    return None


def own_body(function: Function) -> list[ast.stmt]:
    """The statements after the docstring; empty where the body shares the `def` line."""
    body = function.node.body[1:] if docstring_node(function) else function.node.body
    inside = ast.walk(function.node.args)
    ends = [a.end_lineno or 0 for a in inside if isinstance(a, ast.arg | ast.expr)]
    return body if body and body[0].lineno > max([function.node.lineno, *ends]) else []


def body_start(function: Function) -> tuple[int, str, str]:
    """Where the lines after header and docstring begin, which may be comments, for a function that
    has its `own_body`; their indentation, and that of one level."""
    first, docstring = own_body(function)[0], docstring_node(function)
    row = min([first.lineno, *(d.lineno for d in getattr(first, "decorator_list", []))])
    begin = (docstring.end_lineno or 0) if docstring else function.node.lineno
    lines = function.text.split("\n")
    indent = lines[row - 1][: first.col_offset]
    while row - 1 > begin and lines[row - 2].lstrip().startswith("#"):
        row -= 1
    return Lines(function.text).offset(row, 0), indent, indent[function.node.col_offset :]


def fresh_name(function: Function, rng: random.Random, pool: Pool) -> str:
    """A name that does not occur in the function."""
    while True:
        name = rng.choice(pool.names)
        if rng.random() < 0.3:
            name = f"{name}_{rng.choice(pool.names)}"
        if name not in function.text:
            return name
