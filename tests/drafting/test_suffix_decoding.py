from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.drafting.suffix_decoding import SuffixDecoding


def occurrences(text: list[int], stretch: list[int]) -> int:
    return sum(
        text[start : start + len(stretch)] == stretch
        for start in range(len(text) - len(stretch) + 1)
    )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(deadline=None)
def test_drafts_a_way_that_the_text_went_before(text: list[int]) -> None:
    drafter = SuffixDecoding(depth=8)
    drafter.begin(text)
    draft = drafter.propose(5)
    assert len(draft) <= min(draft.match_length, 8 - draft.match_length)
    if draft:
        matched = text[len(text) - draft.match_length :]
        assert occurrences(text, [*matched, *draft.tokens]) > 0


def test_follows_the_most_frequent_way() -> None:
    drafter = SuffixDecoding()
    drafter.begin([1, 2, 7, 9, 1, 2, 5, 8, 1, 2, 7, 6, 1, 2])
    assert drafter.propose(1).tokens == (7,)


def test_drafts_as_many_tokens_as_the_match_has() -> None:
    drafter = SuffixDecoding()
    drafter.begin([*range(20), 0, 1, 2])
    assert drafter.propose(32).tokens == (3, 4, 5)
