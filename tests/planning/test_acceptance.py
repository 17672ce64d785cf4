"""What is learnt of drafts with and without expectations of their own."""

import pytest

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import PRIOR, AcceptanceModel


def draft(
    length: int = 4, *, match: int = 3, source: str = "a", expected: float | None = None
) -> Draft:
    own = () if expected is None else (expected,) * length
    return Draft(tuple(range(length)), source, match, None, own)


def test_what_nothing_is_known_of_has_the_prior() -> None:
    assert AcceptanceModel().accept_probs(draft()) == pytest.approx([PRIOR] * 4)


def test_positions_and_matches_are_told_apart() -> None:
    model = AcceptanceModel()
    for _ in range(60):
        model.learn(draft(match=3), 1)
        model.learn(draft(match=20), 4)
    short, long = model.accept_probs(draft(match=3)), model.accept_probs(draft(match=20))
    assert short[0] > 0.85
    assert short[1] < 0.15
    assert min(long) > 0.85


def test_a_match_never_seen_leans_on_its_source() -> None:
    model = AcceptanceModel()
    for _ in range(60):
        model.learn(draft(match=3), 0)
    assert model.accept_probs(draft(match=30))[0] < 0.3
    assert model.accept_probs(draft(source="b"))[0] == pytest.approx(PRIOR)


def test_old_outcomes_fade() -> None:
    model = AcceptanceModel()
    for _ in range(500):
        model.learn(draft(1), 0)
    for _ in range(100):
        model.learn(draft(1), 1)
    assert model.accept_probs(draft(1))[0] > 0.6


def test_a_drafters_own_expectations_are_taken_as_they_are() -> None:
    assert AcceptanceModel().accept_probs(draft(expected=0.3)) == pytest.approx([0.3] * 4)


def test_first_tokens_and_later_ones_are_corrected_apart() -> None:
    model = AcceptanceModel()
    draft = Draft((1, 2, 3), "auto", 5, None, (0.5, 0.9, 0.9))
    for _ in range(100):
        model.learn(draft, 1)
    first, second, third = model.accept_probs(draft)
    assert first > 0.6
    assert second == third < 0.4


@pytest.mark.parametrize(("claimed", "true"), [(0.9, 0.2), (0.2, 0.9)])
def test_but_corrected_where_they_prove_wrong(claimed: float, true: float) -> None:
    model = AcceptanceModel()
    for at in range(200):
        model.learn_token(draft(expected=claimed), 0, stood=at % 10 < 10 * true)
    assert model.accept_probs(draft(expected=claimed))[0] == pytest.approx(true, abs=0.15)


@pytest.mark.parametrize("expected", [float("nan"), float("inf"), -1.0, 2.0])
def test_nonsense_is_brought_into_range(expected: float) -> None:
    model = AcceptanceModel()
    model.learn(draft(expected=expected), 2)
    assert all(0 < chance < 1 for chance in model.accept_probs(draft(expected=expected)))
