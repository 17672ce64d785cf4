"""Whether an answer is right, honest or broken: hard cases, and messages of strangers.

An answer without code is honest where code was asked for, since it does no harm; one with other
code than the right one, or without an end, is broken, or doubted where the chat says so below it.
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from akunu_py.cli.chat import doubt_of
from benchmarks.evaluate_model.held_out import SEED, ChatCase
from benchmarks.evaluate_model.scoring import Answer
from models.training.functions import Function
from models.training.hard_cases import HardCases
from models.training.invented import Inventor
from models.training.people import ASK, CODE, NO, SAME, Accepted, tree_of

STRANGERS = Path(__file__).with_name("strangers.txt")
OUTCOMES = ("right", "honest", "doubted", "broken")
FACTS = (*OUTCOMES, "right but doubted")
_BLOCK = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)


def hard_cases(functions: list[Function], per_kind: int) -> Iterator[ChatCase]:
    """`per_kind` conversations of every kind, with held-out names, bodies and requests."""
    invented = HardCases(Inventor(random.Random(f"{SEED} hard"), held_out=True), functions)
    for kind in invented.makers:
        for _ in range(per_kind):
            turns = invented.conversation(kind)
            yield ChatCase(kind, turns[:-1], turns[-1][1])


def facts(what: str, question: str, answer: Answer) -> tuple[bool, ...]:
    """Which of `FACTS` are true of an answer that is right, honest or broken."""
    doubted = answer.ended and doubt_of(question, answer.text, answer.log_probability) is not None
    if what == "broken" and doubted:
        what = "doubted"
    return (*(what == one for one in OUTCOMES), what == "right" and doubted)


def outcome(answer: str, accepted: Sequence[Accepted], *, shown: str, ended: bool) -> str:
    """Right, honest or broken; `shown` is the code that the message is about."""
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


def _same(code: str, right: str) -> bool:
    """Whether both have the same syntax and comments; any docstring will do if the right one has
    three dots."""
    if code.strip() == right.strip():
        return True
    if '"""..."""' in right:
        code = re.sub(r'"""(?:(?!""").)*"""', '"""..."""', code, flags=re.DOTALL)
    tree = tree_of(code)
    return tree is not None and tree == tree_of(right) and _comments(code) == _comments(right)


def _comments(code: str) -> list[str]:
    return [line.partition("#")[2] for line in code.split("\n") if "#" in line]
