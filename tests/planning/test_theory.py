"""The arithmetic: the book's formula with the right sums, thresholds, payoffs, shared rows."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.theory import (
    assess,
    best_num_draft_tokens,
    break_even,
    expected_accepted,
    expected_tokens,
    predicted_speedup,
    share_rows,
)
from tests.planning.curves import FLAT, LINEAR, M1_LIKE, STEPPED

CONTEXT = 256


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.5, 0.94), (0.7, 1.77), (0.9, 3.10)])
def test_four_draft_tokens_are_accepted_as_the_formula_says(
    acceptance: float, accepted: float
) -> None:
    assert round(expected_accepted(4, acceptance), 2) == accepted


@given(drafts=st.integers(0, 40), acceptance=st.floats(0, 1))
def test_tokens_are_the_accepted_and_one_more(drafts: int, acceptance: float) -> None:
    tokens = expected_tokens([acceptance] * drafts)
    assert tokens[-1] == pytest.approx(1 + expected_accepted(drafts, acceptance))


def test_break_even_is_where_the_speedup_is_one() -> None:
    threshold = break_even(STEPPED, 4, CONTEXT)
    assert threshold is not None
    assert predicted_speedup(STEPPED, 4, threshold, CONTEXT) == pytest.approx(1.0)
    assert break_even(LINEAR, 4, CONTEXT) is None


def test_the_best_length_stops_at_the_step() -> None:
    assert best_num_draft_tokens(STEPPED, 0.7, CONTEXT, 32) == 4
    assert best_num_draft_tokens(LINEAR, 0.9, CONTEXT, 32) == 0


@pytest.mark.parametrize(
    ("costs", "least", "said"),
    [
        (STEPPED, 0.10, "Drafting pays here from 10% acceptance, with "),
        (M1_LIKE, 0.94, "Drafting pays here from "),
        (FLAT, 0.0, "Drafting pays here from "),
        (LINEAR, None, "Drafting does not pay"),
    ],
)
def test_from_which_acceptance_on_drafting_pays(
    costs: CostCurve, least: float | None, said: str
) -> None:
    payoff = assess(costs, CONTEXT, 32)
    assert payoff.pays is (least is not None)
    assert payoff.acceptance == pytest.approx(least, abs=0.05)
    assert str(payoff).startswith(said)
    assert costs is not FLAT or payoff.most_drafts >= 31


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
    found, told = share_rows(drafts, seconds, len(drafts) + others)
    best = max(
        speed(drafts, lengths, seconds, others)
        for lengths in product(*(range(len(draft) + 1) for draft in drafts))
    )
    assert speed(drafts, tuple(found), seconds, others) >= best * (1 - 1e-6)
    assert told == pytest.approx(best)


def test_rows_that_cost_nothing_are_used_and_rows_that_cost_a_forward_are_not() -> None:
    drafts = [[0.9, 0.5], [0.2]]
    assert share_rows(drafts, [1.0, 1.0, 1.0, 1.0], 2)[0] == [2, 1]
    assert share_rows(drafts, [1.0, 2.0, 3.0, 4.0], 2) == ([0, 0], 2.0)


def test_the_more_likely_token_comes_first_whosever_it_is() -> None:
    assert share_rows([[0.3, 0.9], [0.8, 0.7]], [1.0, 1.1, 1.2, 9.0, 9.0], 2)[0] == [0, 2]


def test_there_are_no_more_rows_than_their_cost_is_known() -> None:
    assert share_rows([[1.0, 1.0], [1.0]], [1.0, 1.0], 2)[0] == [1, 0]
    assert share_rows([[1.0]], [1.0], 1)[0] == [0]
    assert share_rows([[1.0]], [], 1) == ([0], 0.0)
