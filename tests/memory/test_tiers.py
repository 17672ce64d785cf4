"""What a project's files add to the drafts of `auto`, and when they add nothing."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.recall import MemoryTier
from akunu_py.memory.projects import ProjectTexts
from akunu_py.memory.segment import Segment, joined_documents, write_segment

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
@settings(max_examples=50, deadline=None)
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
