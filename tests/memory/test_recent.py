"""What `auto` drafts from the texts of earlier requests, and what it never does."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import akunu_py
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.occurrences import Occurrences
from akunu_py.drafting.recall import DEPTH, MAX_TEXTS, RecentTexts
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.projects import Memory, ProjectTexts
from akunu_py.options import Options
from akunu_py.tokens import FIRST_BOUNDARY

LINE = list(range(100, 180))
ANSWER = list(range(500, 560))


def asked(
    memory: Memory,
    drafter: AutoDrafter,
    prompt: Sequence[int],
    answer: Sequence[int] = (),
    project: str | None = None,
) -> Draft:
    """The first draft of a request, which then ends with the answer."""
    memory.lend(drafter, project)
    drafter.begin(prompt)
    draft = drafter.propose(8)
    drafter.extend(answer)
    drafter.end()
    return draft


def test_an_answer_to_another_prompt_is_drafted_again() -> None:
    memory, drafter = Memory(remembers=True), AutoDrafter()
    asked(memory, drafter, LINE, ANSWER)
    draft = asked(memory, drafter, [1, 2, 3, *ANSWER[:20]])
    assert draft.tokens == tuple(ANSWER[20:28])
    assert draft.source == "recall"


def test_the_answer_to_the_same_prompt_is_drafted_again() -> None:
    memory, drafter = Memory(remembers=True), AutoDrafter()
    asked(memory, drafter, LINE, ANSWER)
    assert asked(memory, drafter, LINE).tokens == tuple(ANSWER[:8])


def test_drafters_share_what_they_have_ended() -> None:
    memory = Memory(remembers=True)
    asked(memory, AutoDrafter(), LINE, ANSWER)
    assert asked(memory, AutoDrafter(), [1, *ANSWER[:20]]).tokens == tuple(ANSWER[20:28])


def test_projects_and_users_without_memory_share_nothing() -> None:
    projects = {name: ProjectTexts(()) for name in ("one", "other")}
    memory, drafter = Memory(projects, remembers=True), AutoDrafter()
    asked(memory, drafter, LINE, ANSWER, "one")
    for project in ("other", None):
        assert asked(memory, drafter, [1, *ANSWER[:20]], project=project) == NO_DRAFT
    assert asked(memory, drafter, [2, *ANSWER[:20]], project="one")
    assert asked(Memory(), AutoDrafter(), [1, *ANSWER[:20]]) == NO_DRAFT
    with pytest.raises(InvalidRequestError, match="no project third"):
        memory.lend(drafter, "third")


def test_what_is_forgotten_is_not_drafted() -> None:
    memory, drafter = Memory(remembers=True), AutoDrafter()
    asked(memory, drafter, LINE, ANSWER)
    memory.forget_requests()
    assert asked(memory, drafter, [1, 2, 3, *ANSWER[:20]]) == NO_DRAFT


def test_texts_are_bounded_and_those_within_another_are_dropped() -> None:
    texts = RecentTexts(max_tokens=1000)
    for first in range(0, 9000, 90):
        texts.keep(Occurrences(range(first, first + 80)))
        assert len(texts) <= 1000
    assert not texts.nearest(range(10))
    assert texts.nearest(range(8910, 8920))
    few = RecentTexts()
    for first in range(0, 9000, 90):
        few.keep(Occurrences(range(first, first + 40)))
    assert len(few) <= 41 * MAX_TEXTS
    few.keep(Occurrences(range(9000)))
    assert len(few) == 9001
    texts.keep(Occurrences(range(2000)))  # alone more than all may be
    assert 0 < len(texts) <= 1000


small = st.lists(st.integers(0, 2), min_size=32, max_size=80)


@given(texts=st.lists(small, max_size=4), again=st.integers(0, 4), context=small)
def test_what_is_found_is_there(texts: list[list[int]], again: int, context: list[int]) -> None:
    recent, kept = RecentTexts(), [Occurrences(text) for text in texts]
    for text in kept:
        recent.keep(text)
    for text in kept[:again]:
        recent.take_back(text)
    for tokens, at, length in recent.nearest(context[-DEPTH:]):
        assert 4 <= length <= DEPTH
        assert list(tokens[at - length : at]) == context[-length:]
        assert tokens[at] < FIRST_BOUNDARY
        assert not any(tokens is text.tokens for text in kept[:again])


@given(requests=st.lists(st.tuples(small, small, st.booleans()), min_size=1, max_size=6))
def test_any_sequence_of_requests_is_drafted_for(
    requests: list[tuple[list[int], list[int], bool]],
) -> None:
    """Two drafters in turn, whose texts change, are given back, and are taken again."""
    memory, drafters = Memory(remembers=True), (AutoDrafter(), AutoDrafter())
    for prompt, answer, which in requests:
        drafter = drafters[which]
        memory.lend(drafter, None)
        drafter.begin(prompt)
        for token in answer:
            draft = drafter.propose(4)
            assert all(0 <= guess <= 2 for guess in draft.tokens)
            drafter.feedback(draft, int(draft.tokens[:1] == (token,)))
            drafter.extend([token])
        drafter.end()


def test_an_engine_answers_the_same_in_fewer_forwards(tiny_model_dir: Path) -> None:
    engine = akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), remembers=True))
    options = Options(max_tokens=60, num_draft_tokens=8)
    first = engine.generate("def total(", options)
    again = engine.generate("def total(", options)
    assert again.token_ids == first.token_ids
    assert again.stats.target_forwards < first.stats.target_forwards / 2
    engine.reset()
    assert (
        engine.generate("def total(", options).stats.target_forwards > again.stats.target_forwards
    )
