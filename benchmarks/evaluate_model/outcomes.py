"""Whether an answer is right, honest or broken: hard cases, and messages of strangers.

An answer without code is honest where code was asked for, since it does no harm; one with other
code than the right one, or without an end, is broken, or doubted if the chat warns of it.
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from akunu_py.edits.shown import BLOCK, doubt_of
from benchmarks.evaluate_model.held_out import SEED, ChatCase
from benchmarks.evaluate_model.scoring import Answer
from models.training import short_edits
from models.training.chats import Chats
from models.training.functions import Function, docstrings
from models.training.hard_cases import HardCases
from models.training.invented import Inventor
from models.training.people import ASK, CODE, SAME, Accepted, syntax_of
from models.training.refusals import Requests

STRANGERS, LATER_STRANGERS = (
    Path(__file__).with_name(name) for name in ("strangers.txt", "strangers_later.txt")
)
OUTCOMES = ("right", "honest", "doubted", "broken")
FACTS = (*OUTCOMES, "right but doubted")


def hard_cases(functions: list[Function], per_kind: int) -> Iterator[ChatCase]:
    """`per_kind` conversations of every kind, with held-out names, bodies and requests."""
    invented = HardCases(Inventor(random.Random(f"{SEED} hard"), held_out=True), functions)
    for kind in invented.makers:
        for _ in range(per_kind):
            turns = invented.conversation(kind)
            yield ChatCase(kind, turns[:-1], turns[-1][1])
    yield from next_cases(functions, per_kind)


def next_cases(functions: list[Function], per_kind: int) -> Iterator[ChatCase]:
    """Held-out conversations that go on with an edit of other code, or with remarks."""
    inventor = Inventor(random.Random(f"{SEED} next"), held_out=True)
    chats = Chats(inventor, Requests(inventor, docstrings(functions)), functions)
    edits = list(short_edits.conversations(inventor, 2 * per_kind))
    for first, edit in zip(edits[::2], edits[1::2], strict=True):
        yield ChatCase("after another", [*first, *edit[:-1]], edit[-1][1])
    first_messages = [turns for turns in edits if "```" in turns[-1][1]]
    for turns in chats.with_remarks(first_messages, per_kind):
        yield ChatCase("remarks", turns[:-1], turns[-1][1])


def facts(found: str, said: Sequence[str], answer: Answer) -> tuple[bool, ...]:
    """`FACTS` of an answer, given its `outcome` and what was said before it, by user and model in
    turn; a broken one that the chat warns of counts as doubted."""
    is_doubted = doubt_of(said, answer.text, answer.log_probability) is not None
    if found == "broken" and is_doubted:
        found = "doubted"
    return (*(found == one for one in OUTCOMES), found == "right" and is_doubted)


def outcome(answer: str, accepted: Sequence[Accepted], *, shown: str, ended: bool) -> str:
    """Right, honest or broken; `shown` is the code that the message is about."""
    found = BLOCK.search(answer)
    if not ended:
        return "broken"
    if found is None:
        asks = "?" in answer or answer.startswith("There is no `")
        needs_no_code = any(one.kind != CODE and (asks or one.kind != ASK) for one in accepted)
        return "right" if needs_no_code else "honest"
    right = [one.code for one in accepted if one.kind == CODE]
    right += [shown for one in accepted if one.kind == SAME]
    return "right" if any(_same(found[1], code) for code in right) else "broken"


def case_outcome(case: ChatCase, answer: str, *, ended: bool) -> str:
    """The outcome where only `case.answer` is right: every character of its code counts; if it has
    no code, any answer without code is right."""
    if not ended:
        return "broken"
    if answer == case.answer or not ("```" in answer or "```" in case.answer):
        return "right"
    return "broken" if "```" in answer else "honest"


def _same(code: str, right: str) -> bool:
    """Whether both have the same syntax and comments; any docstring will do if the right one has
    three dots."""
    if code.strip() == right.strip():
        return True
    if '"""..."""' in right:
        code = re.sub(r'"""(?:(?!""").)*"""', '"""..."""', code, flags=re.DOTALL)
    tree = syntax_of(code)
    return tree is not None and tree == syntax_of(right) and _comments(code) == _comments(right)


def _comments(code: str) -> list[str]:
    return [line.partition("#")[2] for line in code.split("\n") if "#" in line]
