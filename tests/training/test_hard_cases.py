"""Conversations of the kinds that earlier weights got wrong have the right answers."""

import ast
import random
import re
import textwrap

import pytest

from models.training.hard_cases import ALREADY, HardCases, unchanged, without
from models.training.invented import Inventor
from models.training.near_edits import NearEdits
from models.training.phrases import unmarked

BLOCK = re.compile(r"```(?:python)?\n(.*?)\n?```", re.DOTALL)
KINDS = list(HardCases(Inventor(random.Random(0)), []).makers)


def cases(seed: int, *, held_out: bool = False) -> HardCases:
    return HardCases(Inventor(random.Random(seed), held_out=held_out), [])


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_python_or_words(kind: str) -> None:
    made = cases(1)
    for _ in range(40):
        turns = made.conversation(kind)
        assert [role for role, _ in turns] == ["user", "assistant"] * (len(turns) // 2)
        for _, answer in turns[1::2]:
            assert answer
            if found := BLOCK.search(answer):
                ast.parse(textwrap.dedent(found[1]))


def test_what_is_done_already_stays_as_it_is_and_is_said_to() -> None:
    made = cases(2)
    last = [made.conversation("done already") for _ in range(80)]
    said = [turns for turns in last if turns[-1][1].endswith(ALREADY)]
    assert len(said) > 30
    for turns in said:
        code = BLOCK.search(turns[-1][1])
        assert code
        assert turns[-1][1] == unchanged(code[1])
        assert code[1] in turns[-3][1] if len(turns) > 2 else code[1] in turns[0][1]


def test_a_change_is_taken_back_below_a_later_one() -> None:
    first, second = "def f(x): return x", "def f(x=1): return x"
    assert without(first, second, "async def f(x=1): return x") == "async def f(x): return x"
    assert without(first, second, "def f(x=2): return x") is None
    assert without(first, second, "def f(total=1): return total") is None


def test_undoing_a_part_keeps_the_rest() -> None:
    made = cases(3)
    for _ in range(40):
        turns = made.conversation("undoing a part")
        codes = [found[1] for _, text in turns[1::2] if (found := BLOCK.search(text))]
        assert codes[-1] != codes[-2]
        assert codes[-1] not in turns[0][1]


def test_edits_near_the_training_change_what_they_name() -> None:
    near, found = NearEdits(Inventor(random.Random(6))), set[str]()
    for _ in range(150):
        edit = near.edit()
        if edit is None:
            continue
        if edit.kind == "is none":
            assert "None" in edit.after
            assert not re.search("[=!]= None", edit.after)
        else:
            changed = zip(edit.before.split("\n"), edit.after.split("\n"), strict=True)
            ((old, new),) = [pair for pair in changed if pair[0] != pair[1]]
            assert new.strip() == f"# {old.strip()}"
        found.add(edit.kind)
    assert len(found) == 2


def test_held_out_cases_share_no_request_with_the_training() -> None:
    trained, held_out = (
        {
            unmarked(turns[-2][1])
            for kind in ("beyond it", "near the training")
            for turns in [made.conversation(kind) for _ in range(150)]
            if "\n" not in turns[-2][1]
        }
        for made in (cases(4), cases(4, held_out=True))
    )
    assert trained
    assert not {one for one in held_out if "def " not in one} & trained
