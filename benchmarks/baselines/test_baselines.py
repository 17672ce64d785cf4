"""Baselines: each does what its system does, and keeps the contract of drafters."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.drafting import make_drafter
from akunu_py.drafting.base import Draft, Drafter
from akunu_py.errors import InvalidRequestError
from benchmarks.baselines import BASELINES, drafters_for
from benchmarks.baselines.prompt_lookup import (
    LlamaCache,
    LlamaMapK,
    LlamaMapK4v,
    LlamaMod,
    LlamaSimple,
    TransformersLookup,
    VllmNGram,
)
from benchmarks.baselines.suffix_decoding import SuffixDecoding
from tests.drafting.test_protocol import SENTENCE, decode, streams

KEY = list(range(200, 212))
LONG_KEY = list(range(200, 224))
COPY = list(range(300, 348))
OTHER = list(range(400, 448))


def test_transformers_takes_the_leftmost_match_and_copies_ten() -> None:
    drafter = TransformersLookup()
    drafter.begin([1, 2, *range(50, 70), 1, 2, 9, 1, 2])
    assert drafter.propose(32) == Draft(tuple(range(50, 60)), "transformers-lookup", 2)


def test_transformers_falls_back_to_one_token() -> None:
    drafter = TransformersLookup()
    drafter.begin([2, 8, 9, 1, 2])
    assert drafter.propose(2) == Draft((8, 9), "transformers-lookup", 1)


def test_vllm_needs_five_tokens_and_takes_the_earliest() -> None:
    drafter = VllmNGram()
    drafter.begin([1, 2, 3, 4, 5, 60, 1, 2, 3, 4, 5, 70, 1, 2, 3, 4, 5])
    assert drafter.propose(1).tokens == (60,)
    drafter.begin([1, 2, 3, 4, 60, 1, 2, 3, 4])
    assert not drafter.propose(1)


def test_simple_needs_twelve_tokens_and_takes_the_latest() -> None:
    drafter = LlamaSimple()
    drafter.begin([*KEY, *OTHER, *KEY, *COPY, *KEY])
    assert drafter.propose(64).tokens == tuple(COPY)
    drafter.begin([*KEY[1:], *OTHER, *KEY[1:]])
    assert not drafter.propose(64)


def test_map_k_drafts_no_more_than_the_key_had_accepted() -> None:
    drafter = LlamaMapK()
    drafter.begin([*KEY, *COPY, *KEY])
    draft = drafter.propose(16)
    assert len(draft) == 16
    drafter.feedback(draft, 3)
    drafter.extend([*COPY[:3], 9, *KEY])
    assert drafter.propose(16).tokens == (*COPY[:3],)


def test_map_k4v_drafts_only_a_dominant_value() -> None:
    drafter = LlamaMapK4v()
    drafter.begin([*KEY, *COPY, *KEY, *OTHER, *KEY])
    assert not drafter.propose(8)
    drafter.begin([*KEY, *COPY, *KEY, *OTHER, *KEY, *COPY, *KEY, *COPY, *KEY])
    assert drafter.propose(8).tokens == tuple(COPY[:8])


def test_mod_remembers_other_requests_and_forgets_after_bad_rounds() -> None:
    drafter = LlamaMod()
    drafter.begin([*LONG_KEY, *COPY])
    drafter.begin(LONG_KEY)
    draft = drafter.propose(48)
    assert draft.tokens == tuple(COPY)
    for _ in range(5):
        drafter.feedback(draft, 2)
    assert not drafter.propose(48)


def test_mod_makes_only_long_drafts() -> None:
    drafter = LlamaMod()
    drafter.begin([*LONG_KEY, 1, 2, 3])
    drafter.begin(LONG_KEY)
    assert not drafter.propose(48)


def test_cache_needs_a_count_and_a_share() -> None:
    drafter = LlamaCache()
    drafter.begin([7, 1, 7])
    assert not drafter.propose(1), "one token of context must have been followed twice"
    drafter.begin([5, 7, 1, 6, 7, 1, 7])
    assert drafter.propose(1).tokens == (1,)
    drafter.begin([5, 7, 1, 6, 7, 2, 8, 7])
    assert not drafter.propose(1), "half is not two thirds"


def test_cache_is_stricter_with_counts_of_other_requests() -> None:
    drafter = LlamaCache()
    drafter.begin([7, 1, 7, 1, 7, 1])
    drafter.begin([7])
    assert not drafter.propose(1)
    drafter.begin([7, 1, 9])
    drafter.begin([7])
    assert drafter.propose(1).tokens == (1,)


def occurrences(text: list[int], stretch: list[int]) -> int:
    return sum(
        text[start : start + len(stretch)] == stretch
        for start in range(len(text) - len(stretch) + 1)
    )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(deadline=None)
def test_suffix_decoding_drafts_only_what_followed_the_match_before(text: list[int]) -> None:
    drafter = SuffixDecoding(depth=8)
    drafter.begin(text)
    draft = drafter.propose(5)
    assert len(draft) <= min(draft.match_length, 8 - draft.match_length)
    if draft:
        matched = text[len(text) - draft.match_length :]
        assert occurrences(text, [*matched, *draft.tokens]) > 0


def test_suffix_decoding_follows_the_most_frequent_path() -> None:
    drafter = SuffixDecoding()
    drafter.begin([1, 2, 7, 9, 1, 2, 5, 8, 1, 2, 7, 6, 1, 2])
    assert drafter.propose(1).tokens == (7,)


def test_suffix_decoding_drafts_as_many_tokens_as_it_matched() -> None:
    drafter = SuffixDecoding()
    drafter.begin([*range(20), 0, 1, 2])
    assert drafter.propose(32).tokens == (3, 4, 5)


@pytest.mark.parametrize("make", BASELINES.values(), ids=BASELINES)
@given(prompt=streams, references=st.lists(streams, max_size=3), text=streams, data=st.data())
@settings(max_examples=25, deadline=None)
def test_baselines_keep_the_contract_of_drafters(
    make: Callable[[], Drafter],
    prompt: list[int],
    references: list[list[int]],
    text: list[int],
    data: st.DataObject,
) -> None:
    decode(make(), prompt, references, text, data)


@pytest.mark.parametrize("name", BASELINES)
def test_a_replay_keeps_no_text_of_the_request_before(name: str) -> None:
    make = drafters_for(name)
    make().begin([*SENTENCE, *SENTENCE])
    drafter = make()
    drafter.begin(SENTENCE[:40])
    assert not drafter.propose(8)


def test_a_user_cannot_choose_a_baseline() -> None:
    with pytest.raises(InvalidRequestError, match="no drafter 'llama-mod'; choose one of auto"):
        make_drafter("llama-mod")
