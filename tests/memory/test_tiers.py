"""What a project's files and the texts of earlier requests add to the drafts of `auto`, when they
add nothing, and what is never drafted from them."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import akunu_py
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.occurrences import Occurrences
from akunu_py.drafting.recall import DEPTH, MAX_TEXTS, MemoryTier, RecentTexts
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.projects import Memory, ProjectTexts
from akunu_py.memory.segment import Segment, joined_documents, write_segment
from akunu_py.options import Options
from akunu_py.tokens import FIRST_BOUNDARY

LINE = list(range(10, 40))


def segment_of(folder: Path, *held: Sequence[int]) -> Segment:
    path = folder / f"{len(list(folder.iterdir()))}.segment"
    write_segment(path, bytes(32), joined_documents(held))
    return Segment(path)


def drafter_of(*segments: Segment) -> AutoDrafter:
    return AutoDrafter(tiers=[MemoryTier(ProjectTexts(segments))])


def draft_after(drafter: AutoDrafter, prompt: Sequence[int], limit: int = 8) -> Draft:
    drafter.begin(prompt)
    return drafter.propose(limit)


def test_what_the_project_holds_is_drafted(tmp_path: Path) -> None:
    draft = draft_after(drafter_of(segment_of(tmp_path, *[LINE] * 6)), [5, *LINE[:15]])
    assert draft.tokens == tuple(LINE[15:23])
    assert draft.source == "recall"
    assert len(draft.accept_probs) == 8


def test_a_draft_ends_where_its_document_ends(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, LINE[:17], LINE[:17])
    assert draft_after(drafter_of(segment), [5, *LINE[:15]]).tokens == (25, 26)
    assert draft_after(drafter_of(segment), [5, *LINE[:17]]) == NO_DRAFT


def test_a_single_short_occurrence_is_not_followed_far(tmp_path: Path) -> None:
    draft = draft_after(drafter_of(segment_of(tmp_path, LINE)), [5, 12])
    assert len(draft) <= 1


def test_the_majority_of_places_is_followed(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, *[[1, 2, 3, 7, 8]] * 5, [1, 2, 3, 9, 9])
    assert draft_after(drafter_of(segment), [4, 1, 2, 3]).tokens[0] == 7


def test_the_request_is_followed_where_it_is_more_likely(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, [3, 4, 9])
    prompt = [*LINE, 1, 3, 4, 8, 1, 3, 4, 8, 1, 3, 4]
    draft = draft_after(drafter_of(segment), prompt)
    assert draft.tokens[0] == 8
    assert draft.source != "recall"


def test_a_draft_goes_on_in_the_memory_where_the_request_ends(tmp_path: Path) -> None:
    """Both have seen the next tokens; then the project's many places say something else."""
    held = [*LINE[:12], 7, 6, 5, 4, 3]
    prompt = [*LINE[6:12], 50, *LINE[7:9]]
    assert draft_after(AutoDrafter(), prompt).tokens[:4] == (*LINE[9:12], 50)
    draft = draft_after(drafter_of(segment_of(tmp_path, *[held] * 16)), prompt)
    assert draft.tokens == (*LINE[9:12], 7, 6, 5, 4, 3)
    assert draft.source == "match"


def test_a_token_is_likelier_if_the_project_agrees(tmp_path: Path) -> None:
    prompt = [1, 2, 3, 8, 1, 2, 3]
    probs = [
        draft_after(drafter_of(*segments), prompt, 1).accept_probs[0]
        for segments in ([], [segment_of(tmp_path, *[[1, 2, 3, 8, 4]] * 6)])
    ]
    assert probs[0] < probs[1]


def test_segments_are_searched_together(tmp_path: Path) -> None:
    one, other = segment_of(tmp_path, [1, 2, 3, 7]), segment_of(tmp_path, LINE, LINE)
    assert draft_after(drafter_of(one, other), [5, *LINE[:15]]).tokens[0] == LINE[15]


def test_a_memory_that_is_wrong_falls_silent_and_is_heard_again_when_it_is_right(
    tmp_path: Path,
) -> None:
    drafter = drafter_of(segment_of(tmp_path, LINE, LINE, LINE))

    def drafted(follower: int | None) -> int:
        drafter.begin([5, *LINE[:8]])
        draft = drafter.propose(1)
        drafter.feedback(draft, int(follower is None))
        drafter.extend([LINE[8] if follower is None else follower])
        return len(draft)

    assert drafted(99) == 1
    for _ in range(200):
        drafted(99)
    assert sum(drafted(99) for _ in range(10)) == 0
    for _ in range(30):
        drafted(None)
    assert drafted(None) == 1


@given(
    held=st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=3),
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
@settings(max_examples=50)
def test_carried_places_say_what_a_new_search_would(
    tmp_path_factory: pytest.TempPathFactory,
    held: list[list[int]],
    texts: list[list[int]],
    seed: int,
) -> None:
    """At every token of several requests: each recalled match is one of the project."""
    folder = tmp_path_factory.mktemp("tier")
    tier, draw = MemoryTier(ProjectTexts([segment_of(folder, *held)])), Random(seed)
    spelled = ["".join(map(str, document)) for document in held]
    for text in texts:
        for size in range(1, len(text) + 1):
            if draw.random() < 0.3:
                continue
            recall = tier.recall(text[:size])
            if recall is None:
                continue
            matched = "".join(map(str, text[size - recall.length : size]))
            assert any(f"{matched}{recall.token}" in document for document in spelled)


PROMPT = list(range(100, 180))
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


def test_an_answer_is_drafted_again_by_every_drafter() -> None:
    memory, drafter = Memory(remembers=True), AutoDrafter()
    asked(memory, drafter, PROMPT, ANSWER)
    assert asked(memory, drafter, PROMPT).tokens == tuple(ANSWER[:8])
    for other in (drafter, AutoDrafter()):
        draft = asked(memory, other, [1, 2, 3, *ANSWER[:20]])
        assert (draft.tokens, draft.source) == (tuple(ANSWER[20:28]), "recall")


def test_projects_and_users_without_memory_share_nothing() -> None:
    projects = {name: ProjectTexts(()) for name in ("one", "other")}
    memory, drafter = Memory(projects, remembers=True), AutoDrafter()
    asked(memory, drafter, PROMPT, ANSWER, "one")
    for project in ("other", None):
        assert asked(memory, drafter, [1, *ANSWER[:20]], project=project) == NO_DRAFT
    assert asked(memory, drafter, [2, *ANSWER[:20]], project="one")
    assert asked(Memory(), AutoDrafter(), [1, *ANSWER[:20]]) == NO_DRAFT
    with pytest.raises(InvalidRequestError, match="no project third"):
        memory.lend(drafter, "third")


def test_what_is_forgotten_is_not_drafted() -> None:
    memory, drafter = Memory(remembers=True), AutoDrafter()
    asked(memory, drafter, PROMPT, ANSWER)
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
