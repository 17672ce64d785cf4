"""How edits are counted when the bundled model is evaluated, with a scorer of a few lines."""

import ast
import textwrap
from collections import Counter
from collections.abc import Callable
from math import log
from pathlib import Path

import numpy as np
import pytest

from benchmarks.evaluate_model.evaluation import (
    asked_for_code,
    by_hand,
    chat_edits,
    fillings,
    outside,
    real_edits,
)
from benchmarks.evaluate_model.first_messages import messages
from benchmarks.evaluate_model.held_out import (
    AGAIN,
    ANY_WORDS,
    LATER_OWN_WORDS,
    OWN_WORDS,
    ChatCase,
    EditCase,
    correction_cases,
    later_edit_cases,
    no_code_cases,
    outside_cases,
    own_words,
    two_edit_cases,
)
from benchmarks.evaluate_model.outcomes import (
    FACTS,
    LATER_STRANGERS,
    STRANGERS,
    case_outcome,
    facts,
    hard_cases,
    outcome,
)
from benchmarks.evaluate_model.scoring import Answer, Score
from models.training import refusals
from models.training.chats import WHAT_CHANGE
from models.training.edits import Edit, fenced
from models.training.fill_in import Hole
from models.training.functions import Function
from models.training.people import (
    ASK,
    CODE,
    NO,
    SAME,
    Accepted,
    read_conversations,
    shown_code,
)
from models.training.phrases import REQUESTS, unmarked


class OneTokenACharacter:
    """Gets short answers right, and of long ones all but the last token."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def chat_prompt(self, turns: list[tuple[str, str]]) -> list[int]:
        return self.encode("".join(content for _, content in turns))

    def score(self, prompt: list[int], answer: list[int]) -> Score:
        hits = np.ones(len(answer), np.bool_)
        hits[-1] = len(prompt) + len(answer) <= 250
        return Score(hits, 0.0)


def case(kind: str, length: int) -> EditCase:
    code = "x" * (length - len("ask<|im_end|>"))
    function = Function(code, is_method=False, origin="test")
    return EditCase(function, Edit(kind, "ask", code, code), [("user", "ask")], code)


class Speaker(OneTokenACharacter):
    """Never scores an answer right; its own answers depend on what was said last.

    Args:
        says: the answer to that, and whether it ends.
    """

    def __init__(self, says: Callable[[str], tuple[str, bool]]) -> None:
        self._says = says

    def chat_prompt(self, turns: list[tuple[str, str]]) -> list[int]:
        return self.encode(turns[-1][1])

    def score(self, prompt: list[int], answer: list[int]) -> Score:
        return Score(np.arange(len(answer)) < 3, 0.0)

    def answer(self, prompt: list[int], most: int) -> Answer:
        return Answer(*self._says("".join(map(chr, prompt))))


PARROT = Speaker(lambda said: (said if said == WHAT_CHANGE else fenced(said), True))
EVASIVE = Speaker(lambda _: (refusals.WHICH_CODE, True))


def test_wrong_edits_that_do_not_end_are_counted_as_loops() -> None:
    cases = [ChatCase("guard", [("user", words)], "x" * 9) for words in ("more", "less")]
    shares = chat_edits(Speaker(lambda said: ("", said != "more")), cases)["guard"]  # type: ignore[arg-type]
    assert (shares["cases"], shares["exact"], shares["loops"]) == (2, 0, 0.5)


def test_code_that_comes_back_as_it_was_is_counted() -> None:
    cases = [ChatCase("guard", [("user", words)], "z" * 9) for words in ("in: x = 1", "in: y = 2")]
    shares = chat_edits(Speaker(lambda _: (fenced("x = 1"), True)), cases)["guard"]  # type: ignore[arg-type]
    assert (shares["unchanged"], shares["refused"], shares["loops"]) == (0.5, 0, 0)


DOCUMENTED = Function('def f(x):\n    """Return it again."""\n    return x', False, "test")


def test_asking_for_the_code_again_is_no_edit() -> None:
    cases = [ChatCase(kind, [("user", "ask")], "z") for kind in (AGAIN, "undo")]
    shares = chat_edits(OneTokenACharacter(), cases)  # type: ignore[arg-type]
    assert {kind: row["cases"] for kind, row in shares.items()} == {AGAIN: 1, "undo": 1, "all": 1}
    kinds = Counter(case.kind for case in later_edit_cases([DOCUMENTED], 60))
    assert kinds.pop(AGAIN)
    assert kinds.total() == 60


def test_requests_written_by_hand_are_counted_as_first_and_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    asked = f"> {WHAT_CHANGE}\n{WHAT_CHANGE}\n"
    path.write_text(f"# words\n\n> x = 1\n. y\nx = 1\ny\n> hi\n?\n> z\nno\n\n> z\nz\n{asked}")
    shares = by_hand(PARROT, own_words(path))  # type: ignore[arg-type]
    assert shares == {
        "first": {"cases": 2, "exact": 1},
        "later": {"cases": 1, "exact": 0},
        "others": {"cases": 2, "exact": 0.5},
    }


@pytest.mark.parametrize("path", [OWN_WORDS, LATER_OWN_WORDS], ids=lambda path: path.stem)
def test_requests_written_by_hand_ask_for_python(path: Path) -> None:
    for turns in own_words(path):
        assert [role for role, _ in turns[:2]] == ["user", "assistant"]
        for code in (right for _, right in turns[1::2] if right not in (ANY_WORDS, WHAT_CHANGE)):
            ast.parse(textwrap.dedent(code))


def test_requests_without_code_are_right_if_they_ask_for_it() -> None:
    cases = list(no_code_cases(3))
    row = asked_for_code(EVASIVE, cases)["all"]  # type: ignore[arg-type]
    assert row == {"cases": 3, "asked": 1, "loops": 0}
    row = asked_for_code(PARROT, cases)["all"]  # type: ignore[arg-type]
    assert row["asked"] == 0


def test_asking_for_code_is_no_honest_answer_to_a_question_about_the_world() -> None:
    case = ChatCase("world", [("user", "why")], refusals.answer("world"))
    row = outside(EVASIVE, [case])["world"]  # type: ignore[arg-type]
    assert (row["honest"], row["fits"]) == (0, 0)


@pytest.mark.parametrize("later", [False, True])
def test_no_two_requests_outside_the_training_are_alike(later: bool) -> None:
    documented = Function('def f():\n    """Return the first item."""', False, "")
    cases = list(outside_cases([documented], 120, later=later))
    said = [unmarked(case.request[-1][1]) for case in cases]
    assert len(set(said)) == len(said)


def test_a_hole_of_one_line_may_not_be_filled_with_more() -> None:
    holes = [Hole("def f(x):\n", "    return x\n", ""), Hole("def f(x):\n  x\n", "", "")]
    filler = Speaker(lambda _: ("    return x\n", True))
    shares = fillings(filler, holes, 20)  # type: ignore[arg-type]
    assert shares == {"cases": 2, "exact": 0.5, "ends": 1, "parses": 0.5}
    none = fillings(filler, holes, 20, one_line=True)  # type: ignore[arg-type]
    assert none == {"cases": 2, "exact": 0, "ends": 0, "parses": 0}


def test_edits_are_counted_by_kind_and_by_length() -> None:
    cases = [case("decorate", 150), case("decorate", 151), case("guard", 1101), case("guard", 2001)]
    by_kind, by_length = real_edits(OneTokenACharacter(), cases)  # type: ignore[arg-type]
    assert {kind: row["cases"] for kind, row in by_kind.items()} == {
        "decorate": 2,
        "guard": 1,  # the other one is too long
        "all": 3,
    }
    assert {length: (row["cases"], row["exact"]) for length, row in by_length.items()} == {
        "up to 150": (1, 1),
        "up to 250": (1, 1),
        "up to 2,000": (1, 0),
    }
    assert by_kind["all"]["exact"] == 2 / 3
    assert by_kind["all"]["copied_right"] == 1


def test_a_correction_follows_an_edit_that_it_changes() -> None:
    for case in correction_cases(5):
        (_, asked), (_, mistake), (_, correction) = case.request
        assert "def " in asked
        assert "def " not in correction
        assert case.answer.startswith("```python")
        assert case.answer != mistake


def test_two_edits_in_one_request_are_of_held_out_code() -> None:
    for case in two_edit_cases(5):
        ((_, asked),) = case.request
        known = "\n".join(case.answer.split("\n")[1:-1])
        assert known not in asked
        assert "def " in asked


def test_the_messages_of_the_card_are_not_trained_on() -> None:
    shown = {unmarked(line) for lines in messages().values() for line in lines}
    assert len(shown) == 30
    assert not shown & {unmarked(line) for lines in REQUESTS.values() for line in lines}


@pytest.mark.parametrize(
    ("answer", "accepted", "expected"),
    [
        (fenced("x = 1  # one"), Accepted(CODE, "x  =  1  # one"), "right"),
        (fenced("x = 1"), Accepted(CODE, "x = 1  # one"), "broken"),
        (fenced("x = 2"), Accepted(CODE, "x = 1"), "broken"),
        (fenced("x ="), Accepted(CODE, "x = 1"), "broken"),
        ("No.", Accepted(CODE, "x = 1"), "honest"),
        (fenced("y = 0") + "\nAs it was.", Accepted(SAME), "right"),
        (fenced("y = 1"), Accepted(SAME), "broken"),
        ("It is so.", Accepted(SAME), "right"),
        ("Which code?", Accepted(ASK), "right"),
        ("I cannot.", Accepted(ASK), "honest"),
        ("I cannot.", Accepted(NO), "right"),
        (fenced("y = 0"), Accepted(NO), "broken"),
    ],
)
def test_an_answer_is_right_or_honest_or_broken(
    answer: str, accepted: Accepted, expected: str
) -> None:
    assert outcome(answer, [accepted], shown="y = 0", ended=True) == expected
    assert outcome(answer, [accepted], shown="y = 0", ended=False) == "broken"


@pytest.mark.parametrize(
    ("what", "probability", "expected"),
    [
        ("broken", 0.5, ["doubted"]),
        ("broken", 0.9, ["broken"]),
        ("right", 0.5, ["right", "right but doubted"]),
        ("right", 0.9, ["right"]),
    ],
)
def test_a_broken_answer_that_the_chat_doubts_is_told_apart(
    what: str, probability: float, expected: list[str]
) -> None:
    answer = Answer(fenced("x = 2"), ended=True, log_probability=log(probability))
    true = facts(what, ["make it 2: x = 1"], answer)
    assert [name for name, fact in zip(FACTS, true, strict=True) if fact] == expected


def test_any_docstring_will_do_where_the_right_one_has_three_dots() -> None:
    right = Accepted(CODE, 'def f():\n    """..."""\n    g()')
    said = fenced('def f():\n    """Call g."""\n    g()')
    assert outcome(said, [right], shown="", ended=True) == "right"
    assert outcome(said.replace("g()", "h()"), [right], shown="", ended=True) == "broken"


def test_the_code_of_a_message_is_found_behind_or_below_its_words() -> None:
    assert shown_code(["rename a to b: a = 1"], []) == "a = 1"
    assert shown_code(["make it async\ndef f():\n    g()"], []) == "def f():\n    g()"
    assert shown_code(["async\ndef f():\n    g()"], []) == "def f():\n    g()"
    assert shown_code(["hint\n\nimport os\nx = 1"], []) == "import os\nx = 1"
    assert shown_code(["rename a\ndef f(a): return a + 1"], []) == "def f(a): return a + 1"
    assert shown_code(["x = 1"], [fenced("x = 2"), "No."]) == "x = 2"


@pytest.mark.parametrize("path", [STRANGERS, LATER_STRANGERS])
def test_the_right_answers_of_strangers_are_python(path: Path) -> None:
    found = read_conversations(path)
    assert len(found) == 100
    for message in (message for conversation in found for message in conversation):
        assert message.accepted
        for one in message.accepted:
            assert one.kind in (CODE, SAME, ASK, NO)
            assert bool(one.code) == (one.kind == CODE)
            ast.parse(textwrap.dedent(one.code))


def test_hard_cases_are_answered_by_what_is_right() -> None:
    cases = list(hard_cases([DOCUMENTED], 2))
    assert len({case.kind for case in cases}) * 2 == len(cases)
    for case in cases:
        assert case_outcome(case, case.answer, ended=True) == "right"
        assert case_outcome(case, case.answer, ended=False) == "broken"
        assert case_outcome(case, fenced("other = 1"), ended=True) == "broken"
