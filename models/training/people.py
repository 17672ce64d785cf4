"""Conversations in people's own words, written by hand, and the file format of such.

A message begins with ">" and goes on with "."; "=" tells the right answer to it, and "|" the lines
of its code. An empty line stands between conversations. The first answer is trained; others are
right, too. `people.txt` is trained on, but for one conversation in eight, and
`benchmarks/evaluate_model` has others that nothing is trained on. An edit with "no" before its code
is one that the model still got wrong after that; it learns to refuse it instead.
"""

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from akunu_py.edits.shown import BLOCK, code_in
from models.training.chats import WHAT_CHANGE
from models.training.edits import fenced
from models.training.examples import Turns
from models.training.hard_cases import ABSENT, unchanged
from models.training.invented import Inventor
from models.training.phrases import WORDINGS, is_held_out
from models.training.refusals import SMALL_TALK, WHICH_CODE, answer

PEOPLE = Path(__file__).with_name("people.txt")
CODE, SAME, ASK, NO = "code", "same", "ask", "no"
_TALK = {"thanks": "thanks", "hello": "greeting", "bye": "bye"}
_RENAME = re.compile(r"\b(?:rename|call|change) (?:the \w+ )?`?([A-Za-z_]\w*)`? (?:to|into|as|->) ")
_DEFINITIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_WORD = re.compile(r"[A-Za-z_]\w*")
_AS_WRITTEN, _RENAMED = 0.2, 0.6  # conversations that keep their names; names of the others
_TELLING = frozenset(
    word.lower()
    for one in WORDINGS.values()
    for line in (*one.official, *one.others)
    for word in _WORD.findall(line)
)
"""Words of requests. A name that equals one is kept if a message uses it."""


@dataclass(frozen=True)
class Accepted:
    """A right answer: a kind of it, and its code where it has some."""

    kind: str
    code: str = ""


@dataclass(frozen=True)
class Message:
    """What somebody said, and the right answers to it."""

    text: str
    accepted: Sequence[Accepted]


def read_conversations(path: Path) -> list[list[Message]]:
    """The conversations of a file."""
    conversations = []
    for block in re.split(r"\n\n+(?=> )", path.read_text(encoding="utf-8")):
        said: list[tuple[list[str], list[tuple[str, list[str]]]]] = []
        for line in (line for line in block.split("\n") if line and line[0] != "#"):
            mark, rest = line[0], line[2:]
            if mark == ">":
                said.append(([rest], []))
            elif mark == ".":
                said[-1][0].append(rest)
            elif mark == "=":
                said[-1][1].append((rest, []))
            else:
                said[-1][1][-1][1].append(rest)
        if said:
            conversations.append(
                [
                    Message("\n".join(lines), [Accepted(k, "\n".join(code)) for k, code in right])
                    for lines, right in said
                ]
            )
    return conversations


def conversations_of(*, held_out: bool) -> list[list[Message]]:
    """The conversations of `people.txt` that are held out, or the others."""
    return [one for one in read_conversations(PEOPLE) if is_held_out(one[0].text) == held_out]


def shown_code(messages: Sequence[str], answers: Sequence[str]) -> str:
    """The last code that was in an answer, or else in a message."""
    blocks = (block[1] for said in reversed(answers) if (block := BLOCK.search(said)))
    return next(filter(None, (*blocks, *map(code_in, reversed(messages)))), "")


def syntax_of(code: str) -> str | None:
    """The syntax of a text, perhaps indented; None if it is not Python."""
    try:
        tree = ast.parse(textwrap.dedent(code).strip())
    except (SyntaxError, ValueError):
        return None
    return ast.dump(tree)


class People:
    """Draws conversations of one part of `people.txt`; names are exchanged for invented ones."""

    def __init__(self, inventor: Inventor) -> None:
        self._inventor, self._rng = inventor, inventor.rng
        self._conversations = conversations_of(held_out=inventor.held_out)
        self._left: list[list[Message]] = []

    def conversations(self, count: int) -> Iterator[Turns]:
        """`count` conversations."""
        for _ in range(count):
            yield self._other_names(turns_of(self._next()))

    def _next(self) -> list[Message]:
        if not self._left:
            self._left = self._rng.sample(self._conversations, len(self._conversations))
        return self._left.pop()

    def _other_names(self, turns: Turns) -> Turns:
        """The conversation with some of the names that its code binds exchanged everywhere."""
        if self._rng.random() < _AS_WRITTEN:
            return turns
        asked = [content for role, content in turns if role == "user"]
        spoken = {
            word for text in asked for word in _words(text.replace(shown_code([text], []), ""))
        }
        words = {word for _, content in turns for word in _words(content)}
        exchanged: dict[str, str] = {}
        for old in _bound(turns):
            if old in spoken & _TELLING or self._rng.random() > _RENAMED:
                continue
            new = self._inventor.name()
            new = new.upper() if old.isupper() else new
            if new not in words:
                words.add(new)
                exchanged[old] = new
        return [
            (role, _WORD.sub(lambda word: exchanged.get(word[0], word[0]), content))
            for role, content in turns
        ]


def turns_of(conversation: Sequence[Message]) -> Turns:
    """The conversation with the first right answer to each message, up to a refused edit: what
    follows would be about its code."""
    turns: Turns = []
    for message in conversation:
        said = [content for role, content in turns if role == "user"] + [message.text]
        shown = shown_code(said, [content for role, content in turns if role == "assistant"])
        turns.append(("user", message.text))
        turns.append(("assistant", _answer(message, shown)))
        if message.accepted[0].kind == NO and len(message.accepted) > 1:
            break
    return turns


def _answer(message: Message, shown: str) -> str:
    right = message.accepted[0]
    match right.kind:
        case "code":
            return fenced(right.code)
        case "ask":
            return _question(message.text, shown)
        case "same":
            return unchanged(shown)
        case "no":
            return answer("judge" if shown else "other")
    return SMALL_TALK[_TALK[right.kind]]


def _question(message: str, shown: str) -> str:
    """What is asked where a message is not clear: for code, for a name or for the change."""
    if not shown:
        return WHICH_CODE
    missing = _RENAME.search(message)
    if (
        missing
        and missing[1].lower() not in {"it", "this", "that"}
        and missing[1] not in _words(shown)
    ):
        return ABSENT.format(name=missing[1])
    return WHAT_CHANGE


def _bound(turns: Turns) -> list[str]:
    """Names that code in answers binds; if one has a docstring, which may repeat them in words,
    not those of functions and classes."""
    found: dict[str, None] = {}
    docstrings = any('"""' in content for role, content in turns if role == "assistant")
    for role, content in turns:
        for code in BLOCK.findall(content) if role == "assistant" else ():
            try:
                tree = ast.parse(textwrap.dedent(code))
            except (SyntaxError, ValueError):
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.arg):
                    found[node.arg] = None
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found[node.id] = None
                elif not docstrings and isinstance(node, _DEFINITIONS):
                    found[node.name] = None
    return [name for name in found if name not in ("self", "cls") and "__" not in name]


def _words(text: str) -> list[str]:
    return _WORD.findall(text)
