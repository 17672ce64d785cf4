"""What is answered to requests outside the training, to questions, and in conversations."""

import random
import re

import pytest

from models.training import refusals
from models.training.chats import Chats
from models.training.corpus import STDLIB, SourceFile
from models.training.functions import Function
from models.training.invented import Inventor
from models.training.phrases import REQUESTS, requests_of, unmarked

DOCSTRINGS = ["Return the first item."]


def requests(seed: int = 0, *, held_out: bool = False) -> refusals.Requests:
    return refusals.Requests(Inventor(random.Random(seed), held_out=held_out), DOCSTRINGS)


@pytest.mark.parametrize("kind", sorted(refusals.ANSWERS))
def test_an_answer_says_what_it_is_and_how_to_name_a_larger_model(kind: str) -> None:
    _, answer = requests().turn(kind)
    assert "I am ember" in answer
    assert "--model NAME" in answer
    assert refusals.is_honest(answer)


def test_answers_are_honest_with_the_opening_of_one_and_the_end_of_another() -> None:
    write, judge = refusals.answer("write"), refusals.answer("judge")
    assert refusals.is_honest(write)
    mixed = judge.partition(".")[0] + "." + write.partition(".")[2]
    assert refusals.is_honest(mixed)
    assert not refusals.is_honest(f"{write} Or not.")


def test_a_second_refusal_is_short() -> None:
    first, second = refusals.answer("judge"), refusals.answer("write")
    turns = [("user", first), ("assistant", first), ("user", "w"), ("assistant", second)]
    *kept, (_, brief) = refusals.briefly(turns)
    assert kept == turns[:-1]
    assert second.startswith(brief.partition(" I can")[0])
    assert "ember" not in brief
    assert refusals.is_honest(brief)


def test_edits_are_not_taken_for_refusals() -> None:
    assert not refusals.is_honest("```python\ndef f(total): return total\n```")
    assert not refusals.is_honest(refusals.SMALL_TALK["greeting"])


@pytest.mark.parametrize("kind", sorted(refusals.ANSWERS))
def test_training_and_evaluation_share_no_request(kind: str) -> None:
    known, held_out = (set(requests_of(kind, held_out=h)) for h in (False, True))
    assert known
    assert held_out
    assert not set(map(unmarked, known)) & set(map(unmarked, held_out))


def test_what_is_asked_of_code_that_is_there_is_held_out_as_well() -> None:
    said: list[set[str]] = []
    for held_out in (False, True):
        inventor = Inventor(random.Random(3), held_out=held_out)
        chats = Chats(inventor, requests(held_out=held_out), [])
        judged = {unmarked(one.removesuffix("{code}").rstrip(" :-")) for one in REQUESTS["judge"]}
        asked = (chats.unable()[0] for _ in range(1500))
        said.append({unmarked(words) for words in asked} & judged)
    assert all(said)
    assert not said[0] & said[1]


@pytest.mark.parametrize("kind", ["undo", "again"])
def test_training_and_evaluation_ask_for_earlier_code_in_other_words(kind: str) -> None:
    said = []
    for held_out in (False, True):
        source = requests(held_out=held_out)
        chats = Chats(Inventor(random.Random(3), held_out=held_out), source, [])
        turns = [words for _ in range(75) for _, words in chats.conversation(5)[::2]]
        said.append(set(turns) & set(REQUESTS[kind]))
    assert all(said)
    assert not said[0] & said[1]


def test_an_undone_change_leaves_the_code_before_it() -> None:
    source = requests(3)
    chats = Chats(Inventor(random.Random(3)), source, [])
    versions = [Function(text, is_method=False, origin="") for text in ("x = 1", "x = 2")]
    _, answer = chats.undo(versions)
    assert answer == "```python\nx = 1\n```"
    for turns in chats.conversations(30):
        roles = [role for role, _ in turns]
        assert roles == ["user", "assistant"] * (len(turns) // 2)
        assert 2 <= len(turns) // 2 <= 5


def test_forgotten_code_is_asked_for_and_then_edited() -> None:
    chats = Chats(Inventor(random.Random(3)), requests(3), [], plain_spoken=True)
    brought = 0
    for _ in range(60):
        versions: list[Function] = []
        turns = chats.forget(versions)
        assert turns[1] == ("assistant", refusals.WHICH_CODE)
        assert not re.search(r"def \w+\(", turns[0][1])
        if len(turns) == 4:
            brought += 1
            before, after = versions[0], versions[-1]
            assert turns[2][1].endswith((before.text, f"{before.text}\n```"))
            assert turns[3][1] == f"```python\n{after.text}\n```"
    assert 20 < brought < 60


def test_a_correction_changes_the_name_that_was_just_given() -> None:
    chats = Chats(Inventor(random.Random(5)), requests(5), [], plain_spoken=True)
    made = [turns for _ in range(40) if (turns := chats.correct([]))]
    assert made
    for (_, asked), (_, wrong), (_, corrected), (_, right) in made:
        changed = set(re.findall(r"\w+", right)) - set(re.findall(r"\w+", wrong))
        assert len(changed) == 1
        name = changed.pop()
        assert re.search(rf"(?<!\w){name}(?!\w)", corrected)
        assert not re.search(rf"(?<!\w){name}(?!\w)", asked)


def test_what_is_not_known_is_answered_honestly() -> None:
    text = 'def given():\n    """Say what was given."""\n\n\ndef _own():\n    pass\n'
    files = [SourceFile(STDLIB, "unheard/of.py", text), SourceFile(STDLIB, "re.py", text)]
    turns = list(refusals.library_questions(files, random.Random(1)))
    unknown = [answer for (_, asked), (_, answer) in turns if "unheard.of.given" in asked]
    assert len(unknown) == 2
    assert all(map(refusals.is_honest, unknown))
    assert not [asked for (_, asked), _ in turns if "_own" in asked or "re.given" in asked]
