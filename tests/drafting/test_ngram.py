"""akunu's predictor against a naive model that keeps every n-gram in a list."""

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.drafting.ngram import NGramDrafter

streams = st.lists(st.integers(0, 4), max_size=80)


def naive_draft(text: list[int], limit: int) -> tuple[int, ...]:
    """The longest known context first, most frequent continuation, ties to the most recent."""
    drafted: list[int] = []
    while len(drafted) < limit:
        now = text + drafted
        for length in (3, 2, 1):
            context = now[len(now) - length :] if length <= len(now) else None
            followers = [
                text[i] for i in range(length, len(text)) if text[i - length : i] == context
            ]
            if followers:
                most = max(map(followers.count, followers))
                drafted.append(first_to_reach_last(followers, most))
                break
        else:
            break
    return tuple(drafted)


def first_to_reach_last(followers: list[int], most: int) -> int:
    """Of those that occur `most` times, the one that came to that count last."""
    return next(token for token in reversed(followers) if followers.count(token) == most)


@given(prompt=streams, text=streams, limit=st.integers(0, 6))
def test_drafts_what_the_naive_model_drafts(prompt: list[int], text: list[int], limit: int) -> None:
    drafter = NGramDrafter()
    drafter.begin(prompt)
    drafter.extend(text)
    assert drafter.propose(limit).tokens == naive_draft(prompt + text, limit)


def test_ties_go_to_the_continuation_that_reached_the_count_last() -> None:
    drafter = NGramDrafter()
    drafter.begin([1, 2, 9, 1, 3, 9, 1])
    assert drafter.propose(1).tokens == (3,)
    drafter.begin([1, 3, 9, 1, 2, 9, 1])
    assert drafter.propose(1).tokens == (2,)
