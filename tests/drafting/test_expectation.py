from random import Random

import pytest

from akunu_py.drafting.expectation import (
    GRADES,
    POSITIONS,
    Expectations,
    bucket,
    copy_grade,
    in_place_grade,
    match_grade,
    resumed_grade,
    rewrite_grade,
)
from akunu_py.drafting.occurrences import Consensus, bigram_affinity_of


def test_every_grade_has_a_place_of_its_own() -> None:
    grades = [
        *(copy_grade(run, agrees) for run in (1, 5, 6, 9, 12, 17) for agrees in (False, True)),
        *(match_grade(length, agreed) for length in (1, 2, 3, 4, 6, 9) for agreed in Consensus),
        *(
            resumed_grade(length, nearness, agrees)
            for length in (1, 2, 3)
            for nearness in range(4)
            for agrees in (False, True)
        ),
        *(in_place_grade(replaced, agrees) for replaced in (1, 2) for agrees in (False, True)),
        *(rewrite_grade(repeats, begun) for repeats in range(3) for begun in (False, True)),
    ]
    assert grades == list(range(GRADES))
    assert copy_grade(10**6, agrees=True) == copy_grade(17, agrees=True)


NEUTRAL = bigram_affinity_of(3, 3)


def test_positions_are_told_apart_the_less_the_farther_they_are() -> None:
    assert [bucket(0, position) for position in (0, 1, 2, 3, 4, 7, 8, 15, 16, 999)] == [
        *(0, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    ]
    assert bucket(1, 0) == POSITIONS


def test_priors_are_probabilities_and_rise_along_a_draft() -> None:
    expectations = Expectations()
    for grade in range(GRADES):
        accept_probs = [expectations.of(bucket(grade, position), NEUTRAL) for position in range(32)]
        assert all(0 < chance < 1 for chance in accept_probs)
        assert accept_probs == sorted(accept_probs)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_learns_the_rate_of_its_outcomes(rate: float) -> None:
    expectations, random = Expectations(), Random(4)
    for _ in range(500):
        expectations.learn(7, NEUTRAL, random.random() < rate)
    assert expectations.of(7, NEUTRAL) == pytest.approx(rate, abs=0.15)


def test_a_lucky_request_raises_what_is_expected_of_other_files() -> None:
    expectations = Expectations()
    before = expectations.of(bucket(20, 0), NEUTRAL)
    for _ in range(10):
        expectations.learn(bucket(14, 0), NEUTRAL, True)
    assert expectations.of(bucket(20, 0), NEUTRAL) > before
    expectations.begin()
    assert expectations.of(bucket(20, 0), NEUTRAL) == pytest.approx(before)


def test_luck_follows_the_text() -> None:
    expectations = Expectations()
    other = bucket(20, 0)
    before = expectations.of(other, NEUTRAL)
    for outcome in [True] * 60 + [False] * 25:
        expectations.learn(bucket(14, 0), NEUTRAL, outcome)
    assert expectations.of(other, NEUTRAL) < before


def test_what_always_followed_is_expected_more_than_what_sometimes_did() -> None:
    expectations = Expectations()
    for file in (bucket(copy_grade(9, agrees=True), 0), bucket(match_grade(2, Consensus.ALL), 3)):
        always, mostly, once, hardly = (
            expectations.of(file, bigram_affinity_of(*counts))
            for counts in ((9, 0), (9, 2), (1, 2), (1, 40))
        )
        assert always > mostly > once >= hardly


def test_a_rewrite_is_not_bound_to_what_followed_before_it() -> None:
    expectations = Expectations()
    file = bucket(rewrite_grade(1, begun=False), 0)
    assert expectations.of(file, bigram_affinity_of(0, 40)) == expectations.of(
        file, bigram_affinity_of(9, 0)
    )
