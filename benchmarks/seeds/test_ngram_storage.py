from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.seeds.ngram_storage import NGramStorage, StorageDrafter


def test_one_level_knows_contexts_of_one_length_only() -> None:
    drafter = StorageDrafter(NGramStorage(3, one_level=True))
    drafter.begin([1, 2, 3, 9, 2])
    assert not drafter.propose(5)
    drafter.extend([1, 2])
    assert drafter.propose(1).tokens == (3,)


def test_several_levels_fall_back_down_to_one_token() -> None:
    drafter = StorageDrafter(NGramStorage(3))
    drafter.begin([1, 2, 3, 9, 2])
    draft = drafter.propose(1)
    assert (draft.tokens, draft.match_length) == ((3,), 1)


def test_a_favourite_gives_way_only_to_a_greater_count() -> None:
    storage = NGramStorage(2)
    storage.count([1], 5)
    storage.count([1], 6)
    assert storage.next_token([1]) == (5, 1)
    storage.count([1], 6)
    assert storage.next_token([1]) == (6, 1)


def test_drafts_five_tokens_at_most() -> None:
    drafter = StorageDrafter()
    drafter.begin([1] * 10)
    assert (len(drafter.propose(16)), len(drafter.propose(3))) == (5, 3)


@given(st.lists(st.integers(0, 5), max_size=50))
@settings(deadline=None)
def test_the_favourite_has_the_greatest_count(text: list[int]) -> None:
    storage = NGramStorage(2, one_level=True)
    for previous, token in pairwise(text):
        storage.count([previous], token)
    for previous in set(text[:-1]):
        followers = [b for a, b in pairwise(text) if a == previous]
        known = storage.next_token([previous])
        assert known is not None
        assert followers.count(known[0]) == max(map(followers.count, followers))
