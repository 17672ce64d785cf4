"""Baselines: each does what its system does, and keeps the contract of drafters."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.drafting import make_drafter
from akunu_py.drafting.base import Drafter
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


@pytest.mark.parametrize(
    ("drafter", "prompt", "limit", "drafted", "match"),
    [
        # The leftmost match, and ten tokens of it.
        (TransformersLookup(), [1, 2, *range(50, 70), 1, 2, 9, 1, 2], 32, range(50, 60), 2),
        # It falls back to one token.
        (TransformersLookup(), [2, 8, 9, 1, 2], 2, (8, 9), 1),
        # Five tokens are needed, and the earliest match is taken.
        (VllmNGram(), [*range(5), 60, *range(5), 70, *range(5)], 1, (60,), None),
        (VllmNGram(), [*range(4), 60, *range(4)], 1, (), None),
        # Twelve tokens are needed, and the latest match is taken.
        (LlamaSimple(), [*KEY, *OTHER, *KEY, *COPY, *KEY], 64, COPY, None),
        (LlamaSimple(), [*KEY[1:], *OTHER, *KEY[1:]], 64, (), None),
        # Only a dominant value is drafted.
        (LlamaMapK4v(), [*KEY, *COPY, *KEY, *OTHER, *KEY], 8, (), None),
        (
            LlamaMapK4v(),
            [*[*KEY, *COPY, *KEY, *OTHER], *[*KEY, *COPY] * 2, *KEY],
            8,
            COPY[:8],
            None,
        ),
        # One token of context must have been followed twice, and half is not two thirds.
        (LlamaCache(), [7, 1, 7], 1, (), None),
        (LlamaCache(), [5, 7, 1, 6, 7, 1, 7], 1, (1,), None),
        (LlamaCache(), [5, 7, 1, 6, 7, 2, 8, 7], 1, (), None),
        # The most frequent path, and as many tokens as were matched.
        (SuffixDecoding(), [1, 2, 7, 9, 1, 2, 5, 8, 1, 2, 7, 6, 1, 2], 1, (7,), None),
        (SuffixDecoding(), [*range(20), 0, 1, 2], 32, (3, 4, 5), None),
    ],
)
def test_what_is_drafted_after_a_prompt(
    drafter: Drafter, prompt: list[int], limit: int, drafted: Sequence[int], match: int | None
) -> None:
    drafter.begin(prompt)
    draft = drafter.propose(limit)
    assert draft.tokens == tuple(drafted)
    assert match in (draft.match_length, None)


def test_map_k_drafts_no_more_than_the_key_had_accepted() -> None:
    drafter = LlamaMapK()
    drafter.begin([*KEY, *COPY, *KEY])
    draft = drafter.propose(16)
    assert len(draft) == 16
    drafter.feedback(draft, 3)
    drafter.extend([*COPY[:3], 9, *KEY])
    assert drafter.propose(16).tokens == (*COPY[:3],)


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
