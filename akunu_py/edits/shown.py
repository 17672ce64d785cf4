"""The code that a conversation shows, and what is wrong with the code in an answer about it."""

import re
from collections.abc import Iterator, Sequence
from math import log
from textwrap import dedent
from typing import Final
from warnings import catch_warnings, simplefilter

from akunu_py.edits.parts import NO_PYTHON, parse_python

_SURE: Final = log(0.75)
"""The chat warns of answers that the bundled model finds less probable than this."""
UNSURE: Final = "The model is not sure of this answer; check it."
BLOCK: Final = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)
_PLAIN: Final = re.compile(r"[\w\s]*")
"""Only words: "what is love" is Python, but not meant so."""
_WORD_ABOVE: Final = re.compile(r"\s*(?!(?:pass|break|continue)\b)[A-Za-z_]\w*[ \t]*\n+\S")
"""A line of one word, as "fix", above what may be code."""
_WORD: Final = re.compile(r"\b[A-Za-z_]\w*")
_COLON: Final = re.compile(r":[ \n]\s*")
_NAMES: Final = re.compile(
    r"nam[ei]|call|[-=]>|[`'\"]|\b(?:to|into|as|instead|use|be|is|not|was)\b", re.IGNORECASE
)
"""What a message has that asks for another name."""


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
    blocks = BLOCK.findall(answer)
    own, earlier = code_in(said[-1]), next(filter(None, map(code_in, reversed(said[:-1]))), "")
    repeats = bool(own) and own in map(code_in, said[-3::-2])
    shown = earlier if own in earlier and not repeats else own
    says_same = not answer.rstrip().endswith("```")
    for block in blocks:
        code = block.strip()
        if shown and (not _is_python(block) or (_compiles(shown) and not _compiles(block))):
            return "The code in this answer is not valid Python."
        is_same = code == shown.strip()
        if says_same and shown and not is_same:
            return "This answer says that nothing changes, but its code is other code."
        unread = said[-1] if not own else ""
        is_earlier = code == earlier.strip() and not repeats
        if not says_same and (is_same or is_earlier or (code and code in unread)):
            return "The code in this answer is unchanged."
    if not own and any(_is_named_by_chance(said[-1], shown, block) for block in blocks):
        return "The message does not ask for this name; check the answer."
    return UNSURE if blocks and is_unsure(log_probability) else None


def _is_named_by_chance(message: str, shown: str, code: str) -> bool:
    """Whether code has a word of the message as a name only because it is there: `trains` in an
    answer to "I like trains"."""
    words = set(_WORD.findall(message))
    before, after = set(_WORD.findall(shown)), set(_WORD.findall(code))
    old, new = before - after, after - before
    is_renamed = len(old) == len(new) == 1
    return is_renamed and new <= words and not (old & words or _NAMES.search(message))


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
