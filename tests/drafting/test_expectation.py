from random import Random

import pytest

from akunu_py.drafting.expectation import (
    AFFINITY_ODDS,
    EVIDENCE,
    LEFT,
    POSITIONS,
    RECALLED,
    SILENT,
    SUPPORT_ODDS,
    Expectations,
    bucket,
    copy_evidence,
    match_evidence,
    recall_evidence,
    resumed_evidence,
    rewrite_evidence,
    rival_of,
    support_of,
)
from akunu_py.drafting.occurrences import Consensus, bigram_affinity_of


def test_every_kind_of_evidence_has_its_own_place() -> None:
    kinds = [
        *(copy_evidence(run) for run in (8, 9, 12, 17)),
        *(kind for length in (1, 2, 3, 4, 6, 9) for kind in match_evidence(length, False)[:2]),
        *match_evidence(1, False)[2:],
        *match_evidence(1, True),
        *(resumed_evidence(length, distance) for length in (1, 2) for distance in range(3)),
        *(rewrite_evidence(begun) for begun in (False, True)),
    ]
    kinds += [
        recall_evidence(length, tenth / 10) for length in (2, 3, 6, 13) for tenth in range(10)
    ]
    assert kinds == list(range(EVIDENCE + len(RECALLED)))
    assert recall_evidence(10**6, 1.0) == recall_evidence(13, 0.95)
    assert copy_evidence(10**6) == copy_evidence(17)
    assert match_evidence(10**6, False) == match_evidence(9, False)
    assert resumed_evidence(10**6, 3) == resumed_evidence(2, 2)


NEUTRAL = bigram_affinity_of(3, 3)
CONTEXTS = (LEFT, SILENT, *(rival_of(prob / 10) for prob in range(11)))


def test_later_positions_share_a_bucket() -> None:
    assert [bucket(0, position) for position in (0, 1, 2, 3, 4, 7, 8, 15, 16, 999)] == [
        *(0, 1, 2, 2, 3, 3, 4, 4, 5, 5)
    ]
    assert bucket(1, 0) == POSITIONS


def test_priors_are_probabilities() -> None:
    expectations = Expectations()
    for kind in range(EVIDENCE):
        for context in range(len(AFFINITY_ODDS) * (1 + len(SUPPORT_ODDS))):
            assert 0 < expectations.of(bucket(kind, 0), context) < 1
    for kind in range(EVIDENCE, EVIDENCE + len(RECALLED)):
        for context in CONTEXTS:
            assert 0 < expectations.of(bucket(kind, 0), context) < 1


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_learns_the_rate_of_its_outcomes(rate: float) -> None:
    expectations, random = Expectations(), Random(4)
    for _ in range(500):
        expectations.learn(7, NEUTRAL, random.random() < rate)
    assert expectations.of(7, NEUTRAL) == pytest.approx(rate, abs=0.15)


def test_buckets_learn_separately() -> None:
    expectations = Expectations()
    before = expectations.of(bucket(20, 0), NEUTRAL)
    for _ in range(10):
        expectations.learn(bucket(14, 0), NEUTRAL, True)
    assert expectations.of(bucket(20, 0), NEUTRAL) == before


def test_old_outcomes_fade() -> None:
    expectations = Expectations()
    for outcome in [True] * 1000 + [False] * 100:
        expectations.learn(7, NEUTRAL, outcome)
    assert expectations.of(7, NEUTRAL) < 0.3


def test_what_always_followed_is_expected_more_than_what_sometimes_did() -> None:
    expectations = Expectations()
    pair = match_evidence(2, False)[Consensus.ALL]
    for where in (bucket(copy_evidence(9), 0), bucket(pair, 3)):
        always, mostly, once, rarely = (
            expectations.of(where, bigram_affinity_of(*counts))
            for counts in ((9, 0), (9, 2), (1, 2), (1, 40))
        )
        assert always > mostly > max(once, rarely)


def test_bigram_affinity_does_not_matter_to_a_rewrite() -> None:
    expectations = Expectations()
    where = bucket(rewrite_evidence(begun=False), 0)
    assert expectations.of(where, bigram_affinity_of(0, 40)) == expectations.of(
        where, bigram_affinity_of(9, 0)
    )


@pytest.mark.parametrize("length", [1, 3, 6, 16])
def test_other_texts_that_go_on_alike_make_a_token_likelier(length: int) -> None:
    expectations, where = Expectations(), bucket(match_evidence(2, False)[Consensus.ONLY], 0)
    contexts = [NEUTRAL, *(NEUTRAL + support_of(length, share) for share in (0.0, 1.0))]
    assert len(set(contexts)) == 3
    unknown, never, always = (expectations.of(where, context) for context in contexts)
    assert never < unknown < always


def test_a_request_that_goes_on_otherwise_makes_a_recalled_token_less_likely() -> None:
    expectations, where = Expectations(), bucket(recall_evidence(4, 0.8), 0)
    contexts = (SILENT, rival_of(0.5), rival_of(0.7), rival_of(1.0))
    probs = [expectations.of(where, context) for context in contexts]
    assert probs == sorted(probs, reverse=True)
    assert probs[0] > 2 * probs[-1]
