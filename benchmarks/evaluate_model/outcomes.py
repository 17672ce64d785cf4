"""Whether an answer is right, honest or broken: hard cases, and messages of strangers.

An answer without code is honest where code was asked for, since it does no harm; one with other
code than the right one, or without an end, is broken.
"""

import ast
import random
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.evaluate_model.held_out import SEED, ChatCase
from models.training.functions import Function
from models.training.hard_cases import HardCases
from models.training.invented import Inventor

STRANGERS = Path(__file__).with_name("strangers.txt")
OUTCOMES = ("right", "honest", "broken")
CODE, SAME, ASK, NO = "code", "same", "ask", "no"
_BLOCK = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True)
class Accepted:
    """A right answer: a kind of it, and its code where it has some."""

    kind: str
    code: str = ""


@dataclass(frozen=True)
class Message:
    """What a stranger said, and the right answers to it."""

    text: str
    accepted: Sequence[Accepted]


def hard_cases(functions: list[Function], per_kind: int) -> Iterator[ChatCase]:
    """`per_kind` conversations of every kind, with held-out names, bodies and requests."""
    invented = HardCases(Inventor(random.Random(f"{SEED} hard"), held_out=True), functions)
    for kind in invented.makers:
        for _ in range(per_kind):
            turns = invented.conversation(kind)
            yield ChatCase(kind, turns[:-1], turns[-1][1])


def strangers(path: Path = STRANGERS) -> list[list[Message]]:
    """The conversations of the file."""
    conversations = []
    for block in re.split(r"\n\n(?=> )", path.read_text(encoding="utf-8")):
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


def outcome(answer: str, accepted: Sequence[Accepted], *, shown: str, ended: bool) -> str:
    """One of `OUTCOMES`; `shown` is the code that the message is about."""
    found = _BLOCK.search(answer)
    if not ended:
        return "broken"
    if found is None:
        without_code = any(one.kind in (SAME, NO) for one in accepted)
        asks = any(one.kind == ASK for one in accepted) and "?" in answer
        return "right" if without_code or asks else "honest"
    right = [one.code for one in accepted if one.kind == CODE]
    right += [shown for one in accepted if one.kind == SAME]
    return "right" if any(_same(found[1], code) for code in right) else "broken"


def case_outcome(case: ChatCase, answer: str, *, ended: bool) -> str:
    """The outcome if one answer is right: every character of its code counts; if it has none, any
    words are right."""
    if not ended:
        return "broken"
    if answer == case.answer or not ("```" in answer or "```" in case.answer):
        return "right"
    return "broken" if "```" in answer else "honest"


def shown_code(messages: Sequence[str], answers: Sequence[str]) -> str:
    """The last code that was in an answer, or else in a message."""
    for answer in reversed(answers):
        if found := _BLOCK.search(answer):
            return found[1]
    for message in reversed(messages):
        if found := _BLOCK.search(message):
            return found[1]
        parts = [message, message.partition(": ")[2], *_tails(message)]
        for part in (part for part in parts if part.strip()):
            if _tree(part):
                return part
    return ""


def _tails(message: str) -> Iterator[str]:
    lines = message.split("\n")
    for at in range(len(lines)):
        yield "\n".join(lines[at:])
        yield "\n".join(lines[: len(lines) - at])


def _tree(code: str) -> str | None:
    """The syntax of a text, perhaps indented; None if it is not Python."""
    try:
        tree = ast.parse(textwrap.dedent(code).strip())
    except (SyntaxError, ValueError):
        return None
    return ast.dump(tree)


def _same(code: str, right: str) -> bool:
    """Whether both have the same syntax and comments; any docstring will do if the right one has
    three dots."""
    if code.strip() == right.strip():
        return True
    if '"""..."""' in right:
        code = re.sub(r'"""(?:(?!""").)*"""', '"""..."""', code, flags=re.DOTALL)
    tree = _tree(code)
    return tree is not None and tree == _tree(right) and _comments(code) == _comments(right)


def _comments(code: str) -> list[str]:
    return [line.partition("#")[2] for line in code.split("\n") if "#" in line]
