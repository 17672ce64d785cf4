"""The code that a conversation shows, and what is wrong with the code in an answer about it."""

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log
from textwrap import dedent
from typing import Final
from warnings import catch_warnings, simplefilter

from akunu_py.edits.parts import NO_PYTHON, definitions, parse_python

_SURE: Final = log(0.75)
"""The chat warns of answers that the bundled model finds less probable than this."""
UNSURE: Final = "The model is not sure of this answer; check it."
BLOCK: Final = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)
_PLAIN: Final = re.compile(r"[\w\s]*")
"""Only words: "what is love" is Python, but not meant so."""
_WORD_ABOVE: Final = re.compile(r"\s*(?!(?:pass|break|continue)\b)[A-Za-z_]\w*[ \t]*\n+\S")
"""A line of one word, as "fix", above what may be code."""
_COLON: Final = re.compile(r":[ \n]\s*")
_WORD: Final = re.compile(r"\w+")
_ITSELF: Final = re.compile(r"\bdef (\w+)\([^)]*\b\1\b")
"""A function with a parameter of its own name."""
_LOOKED_AT: Final = 7
"""How many messages before the last one may have the code that it is about."""


def code_in(message: str) -> str:
    """The code in a message: that of its first block, else its longest part that is Python, which
    begins at a line or behind a colon, or ends with a line; empty if there is none."""
    if found := BLOCK.search(message):
        return found[1]
    for part in sorted(_parts(message), key=len, reverse=True):
        if not (_PLAIN.fullmatch(part) or _WORD_ABOVE.match(part)) and _is_python(part):
            return part
    return ""


def doubt_of(said: Sequence[str], answer: str, log_probability: float) -> str | None:
    """A warning about the code in an answer to the last of the texts that were said, by user and
    model in turn; None if there is none. `log_probability` is the model's, of the whole answer."""
    message = said[-1]
    blocks, own = BLOCK.findall(answer), code_in(message)
    earlier = next(filter(None, map(code_in, said[-2 : -2 - _LOOKED_AT : -1])), "")
    shown = own if own not in earlier or "def " in own else earlier
    says_same = not answer.rstrip().endswith("```")
    for block in blocks:
        code = block.strip()
        if shown and (not _is_python(block) or (_compiles(shown) and not _compiles(block))):
            return "The code in this answer is not valid Python."
        is_same = code == shown.strip()
        if says_same and shown and not is_same:
            return "This answer says that nothing changes, but its code is other code."
        unread = message if not own else ""
        if not says_same and (is_same or (code and code in unread)):
            return "The code in this answer is unchanged."
        request = message.replace(own, "")
        if shown and _is_python(shown) and (misplaced := _misplaced(request, shown, block)):
            return misplaced
    return UNSURE if blocks and is_unsure(log_probability) else None


def _misplaced(request: str, shown: str, code: str) -> str | None:
    """A warning of a change in another function than the one named, of a lost function, of a line
    written twice, and of two names that became one."""
    before, after = _definitions(shown), _definitions(code)
    words = set(_WORD.findall(request))
    named = [names for names in before if names[-1] in words]
    if len(before) > 1 and named and all(before[one] == after.get(one) for one in named):
        return f"The message names `{named[0][-1]}`, but this answer changes something else."
    lost, new = before.keys() - after.keys(), after.keys() - before.keys()
    if len(lost) > len(new) and lost.isdisjoint(named):
        return "A function of the code is missing in this answer."
    if _repeated(code) - _repeated(shown):
        return "This answer has a line twice."
    if _ITSELF.search(code) and not _ITSELF.search(shown):
        return "A function and its parameter have the same name in this answer."
    return None


def _definitions(code: str) -> dict[tuple[str, ...], str]:
    """The functions and classes in Python code, by their names and those around them."""
    tree = parse_python(dedent(code).strip())
    return {names: ast.dump(node) for names, node in definitions(tree)}


def _repeated(code: str) -> set[str]:
    """The lines below themselves."""
    lines = [line.strip() for line in code.split("\n")]
    return {line for line, below in pairwise(lines) if line == below}


def is_unsure(log_probability: float) -> bool:
    """Whether an answer of the bundled model deserves a warning by its probability."""
    return log_probability < _SURE


def _parts(message: str) -> Iterator[str]:
    lines = message.split("\n")
    for at in range(len(lines)):
        yield "\n".join(lines[at:]).strip("\n")
        yield "\n".join(lines[: len(lines) - at]).strip("\n")
    for colon in _COLON.finditer(lines[0]):
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
