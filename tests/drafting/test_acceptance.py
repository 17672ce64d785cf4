"""What is learnt from outcomes, and how evidence of `auto` changes what is expected."""

from random import Random

import pytest

from akunu_py.drafting.acceptance import (
    AFFINITY_ODDS,
    EVIDENCE,
    PRIOR,
    RECALLED,
    RIVAL_ODDS,
    SUPPORT_ODDS,
    AcceptanceRates,
    bucket,
    priors,
)
from akunu_py.drafting.base import Draft


def draft(
    length: int = 4, *, match: int = 3, source: str = "a", expected: float | None = None
) -> Draft:
    own = () if expected is None else (expected,) * length
    return Draft(tuple(range(length)), source, match, None, own)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("odds", [0.5, 1.0, 4.0])
def test_a_rate_is_learnt_whatever_the_odds(rate: float, odds: float) -> None:
    rates, random = AcceptanceRates({"kind": 0.7}), Random(4)
    for _ in range(500):
        rates.learn("kind", random.random() < rate, odds)
    assert rates.of("kind", odds) == pytest.approx(rate, abs=0.15)
    assert rates.of("another") == pytest.approx(PRIOR)


def test_higher_odds_make_a_token_likelier() -> None:
    rates = AcceptanceRates({"kind": 0.7})
    low, own, high = (rates.of("kind", odds) for odds in (0.5, 1.0, 2.0))
    assert low < own < high
    assert own == pytest.approx(0.7)


def test_old_outcomes_fade() -> None:
    rates = AcceptanceRates()
    for outcome in [True] * 1000 + [False] * 100:
        rates.learn("kind", outcome)
    assert rates.of("kind") < 0.3


def test_a_draft_without_estimates_is_judged_by_its_source_and_match_length() -> None:
    rates = AcceptanceRates()
    for _ in range(60):
        rates.learn_draft(draft(match=3), 0)
        rates.learn_draft(draft(match=20), 4)
    assert rates.accept_probs(draft(match=3))[0] < 0.15
    assert min(rates.accept_probs(draft(match=20))) > 0.85
    assert rates.accept_probs(draft(source="b")) == pytest.approx([PRIOR] * 4)


def test_estimates_of_a_drafter_are_used_as_they_are() -> None:
    rates = AcceptanceRates()
    rates.learn_draft(draft(expected=0.3), 4)
    assert rates.accept_probs(draft(expected=0.3)) == pytest.approx([0.3] * 4)


@pytest.mark.parametrize("expected", [float("nan"), float("inf"), -1.0, 2.0])
def test_impossible_estimates_are_clamped(expected: float) -> None:
    assert all(0 < prob < 1 for prob in AcceptanceRates().accept_probs(draft(expected=expected)))


def test_priors_are_probabilities_whatever_the_odds() -> None:
    rates = AcceptanceRates(priors())
    for kind in range(EVIDENCE + len(RECALLED)):
        for odds in (*AFFINITY_ODDS, *SUPPORT_ODDS, *RIVAL_ODDS):
            assert 0 < rates.of(bucket(kind, 999), odds) < 1
