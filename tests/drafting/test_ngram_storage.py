from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.bench.baselines import OneLevelStorage
from akunu_py.drafting.base import LearnsFromAlternatives
from akunu_py.drafting.ngram_storage import MultiLevelStorage, StorageDrafter
from akunu_py.errors import InvalidRequestError


def test_one_level_knows_contexts_of_one_length_only() -> None:
    drafter = StorageDrafter(OneLevelStorage(3))
    drafter.begin([1, 2, 3, 9, 2])
    assert not drafter.propose(5)
    drafter.extend([1, 2])
    assert drafter.propose(1).tokens == (3,)


def test_several_levels_fall_back_down_to_one_token() -> None:
    drafter = StorageDrafter(MultiLevelStorage(3))
    drafter.begin([1, 2, 3, 9, 2])
    draft = drafter.propose(1)
    assert (draft.tokens, draft.match_length) == ((3,), 1)


def test_a_favourite_gives_way_only_to_a_greater_count() -> None:
    storage = MultiLevelStorage(2)
    storage.count([1], 5)
    storage.count([1], 6)
    assert storage.next_token([1]) == (5, 1)
    storage.count([1], 6)
    assert storage.next_token([1]) == (6, 1)


def test_a_prompt_shorter_than_a_context_is_no_error() -> None:
    drafter = StorageDrafter(OneLevelStorage(5))
    drafter.begin([1])
    assert not drafter.propose(3)


def test_drafts_five_tokens_at_most() -> None:
    drafter = StorageDrafter()
    drafter.begin([1] * 10)
    assert (len(drafter.propose(16)), len(drafter.propose(3))) == (5, 3)


def test_drafts_at_most_num_draft_tokens() -> None:
    drafter = StorageDrafter(num_draft_tokens=2)
    drafter.begin([1] * 10)
    assert len(drafter.propose(8)) == 2


def test_learns_the_targets_alternatives_at_their_own_position() -> None:
    drafter = StorageDrafter(filler_top_k=2)
    assert isinstance(drafter, LearnsFromAlternatives)
    assert drafter.alternatives_wanted == 2
    drafter.begin([1, 2])
    drafter.extend([3, 4])
    drafter.learn_alternatives(2, [[3, 30, 31], [40, 4]])
    drafter.extend([2, 3])
    assert drafter.propose(1).tokens == (4,), "the token emitted was counted first"
    drafter.extend([40])
    drafter.learn_alternatives(6, [[40, 4]])
    drafter.extend([1, 2, 3])
    assert drafter.propose(1).tokens == (40,)


def test_without_stopping_an_unknown_context_gets_a_random_token_of_its_position() -> None:
    first, second = (
        StorageDrafter(stop_if_unknown=False, vocabulary=1_000, seed=3) for _ in range(2)
    )
    for drafter in (first, second):
        drafter.begin([5])
    assert first.propose(4).tokens == second.propose(1).tokens + first.propose(4).tokens[1:]
    assert first.propose(4).match_length == 0


def test_random_tokens_need_a_vocabulary() -> None:
    with pytest.raises(InvalidRequestError, match="size of the vocabulary"):
        StorageDrafter(stop_if_unknown=False)


@pytest.mark.parametrize("storage", [OneLevelStorage, MultiLevelStorage])
def test_an_order_below_two_is_refused(storage: type[OneLevelStorage | MultiLevelStorage]) -> None:
    with pytest.raises(InvalidRequestError, match="order of n-grams"):
        storage(1)


@given(st.lists(st.integers(0, 5), max_size=50))
@settings(deadline=None)
def test_the_favourite_has_the_greatest_count(text: list[int]) -> None:
    storage = OneLevelStorage(2)
    for previous, token in pairwise(text):
        storage.count([previous], token)
    for previous in set(text[:-1]):
        followers = [b for a, b in pairwise(text) if a == previous]
        known = storage.next_token([previous])
        assert known is not None
        assert followers.count(known[0]) == max(map(followers.count, followers))
