from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.occurrences import (
    MAX_COMPARED,
    VISITED,
    Consensus,
    Occurrences,
    bigram_affinity_of,
)
from akunu_py.tokens import agreement


@given(st.lists(st.integers(0, 3), max_size=60))
def test_a_match_is_found_if_the_last_token_occurred_before(text: list[int]) -> None:
    occurrences = Occurrences(text)
    match = occurrences.best()
    assert (match is None) == (not text or text[-1] not in text[:-1])
    if match:
        before = text[match.position - match.length : match.position]
        assert before == text[len(text) - match.length :]
        assert match.position < len(text)
        assert match.position in match.visited
        recent = text[: -MAX_COMPARED - 1 : -1]
        assert match.length == max(agreement(text, place, recent) for place in match.visited)
        assert len(match.visited) <= VISITED


def test_the_longest_match_wins_over_later_ones() -> None:
    match = Occurrences([1, 2, 3, 50, 9, 3, 60, 1, 2, 3]).best()
    assert match is not None
    assert (match.position, match.length) == (3, 3)


def test_of_equals_the_most_frequent_follower_then_the_latest_wins_or_the_earliest() -> None:
    occurrences = Occurrences([7, 50, 8, 7, 60, 9, 7, 60, 6, 7, 70, 5, 7])
    match = occurrences.best()
    assert match is not None
    assert (match.position, match.consensus) == (7, Consensus.HALF)
    tied = Occurrences([7, 50, 8, 7, 60, 9, 7])
    latest, earliest = tied.best(), tied.best(earliest=True)
    assert latest is not None
    assert earliest is not None
    assert (latest.position, earliest.position) == (4, 1)


def test_consensus_classes() -> None:
    def consensus(*text: int) -> Consensus:
        match = Occurrences(text).best()
        assert match is not None
        return match.consensus

    assert consensus(7, 1, 7) == Consensus.ONLY
    assert consensus(7, 1, 7, 1, 8, 7) == Consensus.ALL
    assert consensus(7, 1, 7, 2, 8, 7) == Consensus.HALF
    assert consensus(7, 1, 7, 2, 7, 3, 8, 7) == Consensus.FEWER


def test_large_ids_do_not_confuse_the_chains() -> None:
    big = 2**31 - 1
    match = Occurrences([big, 5, big - 1, 5, big, 5]).best()
    assert match is not None
    assert (match.position, match.length) == (2, 2)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=90), st.data())
def test_bigram_affinity_counts_all_that_followed_a_token(
    text: list[int], data: st.DataObject
) -> None:
    before, token = data.draw(st.sampled_from(text)), data.draw(st.integers(0, 3))
    followers = [after for at, after in pairwise(text) if at == before]
    same = followers.count(token)
    assert Occurrences(text).bigram_affinity(before, token) == bigram_affinity_of(
        same, len(followers) - same
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_lists_the_places_of_the_last_token(text: list[int]) -> None:
    places = [index + 1 for index, token in enumerate(text) if token == text[-1]]
    assert list(Occurrences(text).after_last()) == places


texts = st.lists(st.integers(0, 2), max_size=30)
requests = st.tuples(texts, st.lists(texts, max_size=2), texts)
"""A prompt, references, and an answer."""


@given(st.lists(requests, min_size=1, max_size=6), st.booleans())
def test_a_request_after_others_is_indexed_as_if_it_were_the_first(
    asked: list[tuple[list[int], list[list[int]], list[int]]], is_conversation: bool
) -> None:
    occurrences, before = Occurrences(), list[int]()
    for prompt, references, answer in asked:
        if is_conversation:
            prompt, references = [*before, *prompt], asked[0][1]  # noqa: PLW2901
        occurrences = occurrences.for_request(prompt, references)
        first = Occurrences(prompt, references)
        assert occurrences.tokens == first.tokens
        for token in answer:
            for own in (occurrences, first):
                own.append(token)
            assert occurrences.best() == first.best()
            assert list(occurrences.after_last()) == list(first.after_last())
            for other in range(3):
                affinity = occurrences.bigram_affinity(token, other)
                assert affinity == first.bigram_affinity(token, other)
        before = [*prompt, *answer[: len(answer) // 2]]


def test_a_conversation_that_goes_on_is_not_indexed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter, prompt, appended = AutoDrafter(), list(range(1000)), list[int]()
    drafter.begin(prompt)
    drafter.extend([7, 8])
    append = Occurrences.append

    def noting(occurrences: Occurrences, token: int) -> None:
        appended.append(token)
        append(occurrences, token)

    monkeypatch.setattr(Occurrences, "append", noting)
    drafter.begin([*prompt, 7, 9, 10])
    assert appended == [9, 10]
