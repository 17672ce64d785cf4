"""The code that a conversation shows, and what is wrong with the code in an answer about it."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import log
from textwrap import dedent
from typing import Final, NamedTuple
from warnings import catch_warnings, simplefilter

from akunu_py.edits.parts import NO_PYTHON, definitions, first_line, parse_python

_SURE: Final = log(0.75)
"""The chat warns of answers that the bundled model finds less probable than this."""
UNSURE: Final = "The model is not sure of this answer; check it."
BLOCK: Final = re.compile(r"```(?:py(?:thon)?3?)?[ \t]*\r?\n(.*?)\n?```", re.DOTALL | re.IGNORECASE)
_PLAIN: Final = re.compile(r"[\w\s]*")
"""Only words: "what is love" is Python, but not meant so."""
_WORD_ABOVE: Final = re.compile(r"\s*(?!(?:pass|break|continue)\b)[A-Za-z_]\w*[ \t]*\n+\S")
"""A line of one word, as "fix", above what may be code."""
_COLON: Final = re.compile(r":[ \n]\s*")
_DEFINITION: Final = re.compile(r"(?:@|def |class |async def )")
_REQUEST_LINES: Final = 12
"""The most lines that a request may have above or below its code."""
_NAMED: Final = re.compile(r"(?<=[\s`])[A-Za-z_]\w*")
"""A name that is not the first word: "add a docstring" does not name the function `add`."""
_NOT_CHANGED: Final = re.compile(
    r"`[^`\n]*\W[^`\n]*`|\b(?:above|below|before|after) `?\w+", re.IGNORECASE
)
"""Code in a request that is more than a name, and a place: "add a method after g"."""
_REMOVES: Final = re.compile(r"\b(?:delete|remove|drop)\b", re.IGNORECASE)
_LOOKED_AT: Final = 7
"""How many messages before the last one may have the code that it is about."""


def code_in(message: str) -> str:
    """The code in a message: that of its first block, else its longest part that is Python, which
    begins at a line or behind a colon, or ends with a line; empty if there is none."""
    if block := _block_in(message):
        return block
    for part in sorted(_parts(message), key=len, reverse=True):
        if not (_PLAIN.fullmatch(part) or _WORD_ABOVE.match(part)) and _is_python(part):
            return part
    return ""


def doubt_of(said: Sequence[str], answer: str, log_probability: float) -> str | None:
    """A warning about the code in an answer to the last of the texts that were said, by user and
    model in turn; None if there is none. `log_probability` is the model's, of the whole answer."""
    message = said[-1]
    blocks, own = BLOCK.findall(answer), code_in(message)
    before = said[-2 : -2 - _LOOKED_AT : -1]
    codes = (code_in(text) if at % 2 else _block_in(text) for at, text in enumerate(before))
    earlier = next(filter(None, codes), "")
    shown = own if own not in earlier or "def " in own else earlier
    says_same = not answer.rstrip().endswith("```")
    for block in blocks:
        code = block.strip()
        if shown and (not _is_python(block) or (_compiles(shown) and not _compiles(block))):
            return "The code in this answer is not valid Python."
        is_same = code == shown.strip()
        if says_same and shown and not is_same:
            return "This answer says that nothing changes, but its code is other code."
        if not says_same and (is_same or (not shown and code and code in message)):
            return "The code in this answer is unchanged."
        request = "".join(message.rsplit(own, 1)) if own else message
        if shown and _is_python(shown) and (misplaced := _misplaced(request, shown, block)):
            return misplaced
    return UNSURE if blocks and is_unsure(log_probability) else None


def _misplaced(request: str, shown: str, code: str) -> str | None:
    """A warning of a change in another function than the one named, of a lost function, of a line
    written twice, and of two names that became one."""
    before, after = _functions(shown), _functions(code)
    words = set(_NAMED.findall(_NOT_CHANGED.sub("", request)))
    named = [names for names in before if names[-1] in words]
    if len(before) > 1 and named and all(before[one] == after.get(one) for one in named):
        return f"The message names `{named[0][-1]}`, but this answer changes something else."
    lost = {names[-1] for names in before} - {names[-1] for names in after}
    if len(after) < len(before) and lost and not _REMOVES.search(request):
        return "A function of the code is missing in this answer."
    if any(request.count(line) < 2 for line in _repeated(code) - _repeated(shown)):
        return "This answer has a line twice."
    if _taking_themselves(after) - _taking_themselves(before):
        return "A function and its parameter have the same name in this answer."
    return None


class _Function(NamedTuple):
    lines: str
    parameters: frozenset[str]


def _functions(code: str) -> dict[tuple[str, ...], _Function]:
    """The functions in Python code, by their names and those around them."""
    text = dedent(code).strip()
    lines = text.split("\n")
    return {
        names: _Function(
            "\n".join(lines[first_line(node) - 1 : node.end_lineno]),
            frozenset(one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)),
        )
        for names, node in definitions(parse_python(text))
        if not isinstance(node, ast.ClassDef)
    }


def _taking_themselves(functions: Mapping[tuple[str, ...], _Function]) -> set[str]:
    """The outermost functions that have a parameter of their own name."""
    return {
        names[0]
        for names, one in functions.items()
        if len(names) == 1 and names[0] in one.parameters
    }


def _repeated(code: str) -> Counter[str]:
    """The lines that follow an equal line, but for comments."""
    lines = [line.partition("#")[0].strip() for line in code.split("\n")]
    return Counter(line for line, below in pairwise(lines) if line and line == below)


def is_unsure(log_probability: float) -> bool:
    """Whether an answer of the bundled model deserves a warning by its probability."""
    return log_probability < _SURE


def _block_in(message: str) -> str:
    found = BLOCK.search(message)
    return found[1] if found else ""


def _parts(message: str) -> Iterator[str]:
    lines = message.split("\n")
    starts = range(min(len(lines), _REQUEST_LINES + 1))
    first = next((at for at in starts if _DEFINITION.match(lines[at])), 0)
    for at in starts:
        yield "\n".join(lines[at:]).strip("\n")
        for start in {0, first}:
            yield "\n".join(lines[start : len(lines) - at]).strip("\n")
    for colon in islice(_COLON.finditer(lines[0]), _REQUEST_LINES):
        yield message[colon.end() :]


def _is_python(code: str) -> bool:
    """Whether code is Python, perhaps indented as a pasted method is."""
    try:
        parse_python(dedent(code).strip())
    except NO_PYTHON:
        return False
    return True


def _compiles(code: str) -> bool:
    """Whether code, perhaps indented, could also run: it has no `await` outside of `async def`."""
    try:
        with catch_warnings():
            simplefilter("ignore")  # what it warns of is the code's own
            compile(dedent(code).strip(), "", "exec")
    except NO_PYTHON:
        return False
    return True
