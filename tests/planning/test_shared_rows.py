"""One budget of rows for several drafts: what is verified emits most tokens per second in all."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from akunu_py.planning.shared_rows import share_rows
from akunu_py.planning.theory import expected_tokens

PROBABILITY = st.floats(0.0, 1.0)
DRAFTS = st.lists(st.lists(PROBABILITY, max_size=4), min_size=1, max_size=3)


def speed(
    drafts: list[list[float]], lengths: tuple[int, ...], seconds: list[float], others: float
) -> float:
    tokens = sum(expected_tokens(draft)[n] for draft, n in zip(drafts, lengths, strict=True))
    return (tokens + others) / seconds[sum(lengths)]


@given(DRAFTS, st.lists(st.floats(0.001, 0.4), min_size=12, max_size=12), st.floats(0.0, 5.0))
def test_no_other_choice_is_faster(
    drafts: list[list[float]], rises: list[float], others: float
) -> None:
    seconds = [1.0]
    for rise in rises:
        seconds.append(seconds[-1] + rise)
    found = share_rows(drafts, seconds, len(drafts) + others)
    best = max(
        speed(drafts, lengths, seconds, others)
        for lengths in product(*(range(len(draft) + 1) for draft in drafts))
    )
    assert speed(drafts, tuple(found), seconds, others) >= best * (1 - 1e-6)


def test_rows_that_cost_nothing_are_used_and_rows_that_cost_a_forward_are_not() -> None:
    drafts = [[0.9, 0.5], [0.2]]
    assert share_rows(drafts, [1.0, 1.0, 1.0, 1.0], 2) == [2, 1]
    assert share_rows(drafts, [1.0, 2.0, 3.0, 4.0], 2) == [0, 0]


def test_the_more_likely_token_comes_first_whosever_it_is() -> None:
    assert share_rows([[0.3, 0.9], [0.8, 0.7]], [1.0, 1.1, 1.2, 9.0, 9.0], 2) == [0, 2]


def test_there_are_no_more_rows_than_their_cost_is_known() -> None:
    assert share_rows([[1.0, 1.0], [1.0]], [1.0, 1.0], 2) == [1, 0]
    assert share_rows([[1.0]], [1.0], 1) == [0]
    assert share_rows([[1.0]], [], 1) == [0]
