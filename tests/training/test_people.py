"""Conversations in people's own words: how they are read, answered and varied."""

import ast
import random
import textwrap
from pathlib import Path

import pytest

from models.training.edits import fenced
from models.training.hard_cases import unchanged
from models.training.invented import Inventor
from models.training.people import (
    ASK,
    CODE,
    SAME,
    Accepted,
    Message,
    People,
    conversations_of,
    read_conversations,
    shown_code,
    turns_of,
)
from models.training.refusals import SMALL_TALK, WHICH_CODE, answer

DOUBLE = "def double(price):\n    return price * 2"


def said(text: str, kind: str, code: str = "") -> Message:
    return Message(text, [Accepted(kind, code)])


def test_a_file_is_read_message_by_message(tmp_path: Path) -> None:
    file = tmp_path / "some.txt"
    file.write_text(
        "> add b\n. a = 1\n.\n= code\n| a = 1\n|\n| b = 1\n> thx\n= thanks\n\n> hi\n= hello\n"
    )
    one, other = read_conversations(file)
    assert one == [said("add b\na = 1\n", CODE, "a = 1\n\nb = 1"), said("thx", "thanks")]
    assert other == [said("hi", "hello")]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([said(f"rename price to x\n{DOUBLE}", CODE, "x = 1")], fenced("x = 1")),
        ([said(f"call it double\n{DOUBLE}", SAME)], unchanged(DOUBLE)),
        ([said(f"make it faster\n{DOUBLE}", "no")], answer("judge")),
        ([said("what is love", "no")], answer("other")),
        ([said("make it async", ASK)], WHICH_CODE),
        ([said(f"rename foo to bar\n{DOUBLE}", ASK)], "There is no `foo` in this code."),
        ([said("cheers", "thanks")], SMALL_TALK["thanks"]),
        ([said(DOUBLE, CODE, "x = 1"), said("that again", SAME)], unchanged("x = 1")),
    ],
)
def test_an_answer_is_what_its_kind_says(messages: list[Message], expected: str) -> None:
    assert turns_of(messages)[-1] == ("assistant", expected)


def test_a_conversation_ends_with_an_edit_that_is_refused() -> None:
    beyond = Message(f"sort it\n{DOUBLE}", [Accepted("no"), Accepted(CODE, "x = 1")])
    turns = turns_of([said("cheers", "thanks"), beyond, said("that again", SAME)])
    assert turns[3:] == [("assistant", answer("judge"))]


def test_a_request_that_tells_too_little_is_answered_by_a_question() -> None:
    ((_, asked),) = turns_of([said(f"another type please\n{DOUBLE}", ASK)])[1:]
    assert asked.endswith(".")
    assert asked.startswith("What shall I change")


def test_names_are_exchanged_everywhere_or_nowhere() -> None:
    people = People(Inventor(random.Random(1)))
    people._conversations = [[said(f"hint price\n{DOUBLE}", CODE, DOUBLE.replace("e)", "e: int)"))]]
    seen = set()
    for turns in people.conversations(20):
        (_, asked), (_, answered) = turns
        words, _, code = asked.partition("\n")
        function = ast.parse(code).body[0]
        assert isinstance(function, ast.FunctionDef)
        name = function.args.args[0].arg
        assert words == f"hint {name}"
        assert answered == fenced(code.replace(f"{name})", f"{name}: int)"))
        seen.add(name)
    assert "price" in seen
    assert len(seen) > 5


def test_all_conversations_are_of_one_part_and_end_in_python() -> None:
    training, held_out = (conversations_of(held_out=held_out) for held_out in (False, True))
    assert len(training) > 5 * len(held_out) > 500
    for conversation in (*training, *held_out):
        for index, message in enumerate(conversation):
            *refused, right = message.accepted
            assert refused in ([], [Accepted("no")])
            assert bool(right.code.strip()) == (right.kind == CODE)
            code = textwrap.dedent(right.code).strip()
            try:
                ast.parse(code)
            except SyntaxError:  # methods with what stands between them
                ast.parse(f"class A:\n{textwrap.indent(code, '    ')}")
            if right.kind == SAME:
                before = turns_of(
                    [Message(one.text, one.accepted[-1:]) for one in conversation[:index]]
                )
                answers = [text for role, text in before if role == "assistant"]
                assert shown_code([one.text for one in conversation[: index + 1]], answers)
