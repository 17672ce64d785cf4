"""Each policy does what sets it apart from the others."""

from akunu_py.drafting.base import Draft
from akunu_py.drafting.prompt_lookup import (
    LlamaCache,
    LlamaMapK,
    LlamaMapK4v,
    LlamaMod,
    LlamaSimple,
    TransformersLookup,
    VllmNGram,
)

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


def test_map_k4v_wants_one_value_to_dominate() -> None:
    drafter = LlamaMapK4v()
    drafter.begin([*KEY, *COPY, *KEY, *OTHER, *KEY])
    assert not drafter.propose(8)
    drafter.begin([*KEY, *COPY, *KEY, *OTHER, *KEY, *COPY, *KEY, *COPY, *KEY])
    assert drafter.propose(8).tokens == tuple(COPY[:8])


def test_mod_remembers_other_requests_and_is_wiped_by_bad_rounds() -> None:
    drafter = LlamaMod()
    drafter.begin([*LONG_KEY, *COPY])
    drafter.begin(LONG_KEY)
    draft = drafter.propose(48)
    assert draft.tokens == tuple(COPY)
    for _ in range(5):
        drafter.feedback(draft, 2)
    assert not drafter.propose(48)


def test_mod_drafts_long_or_not_at_all() -> None:
    drafter = LlamaMod()
    drafter.begin([*LONG_KEY, 1, 2, 3])
    drafter.begin(LONG_KEY)
    assert not drafter.propose(48)


def test_cache_wants_counts_and_shares() -> None:
    drafter = LlamaCache()
    drafter.begin([7, 1, 7])
    assert not drafter.propose(1), "one token of context must have been followed twice"
    drafter.begin([5, 7, 1, 6, 7, 1, 7])
    assert drafter.propose(1).tokens == (1,)
    drafter.begin([5, 7, 1, 6, 7, 2, 8, 7])
    assert not drafter.propose(1), "half is not two thirds"


def test_cache_is_stricter_with_what_other_requests_showed() -> None:
    drafter = LlamaCache()
    drafter.begin([7, 1, 7, 1, 7, 1])
    drafter.begin([7])
    assert not drafter.propose(1)
    drafter.begin([7, 1, 9])
    drafter.begin([7])
    assert drafter.propose(1).tokens == (1,)
