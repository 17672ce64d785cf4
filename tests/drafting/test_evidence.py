"""The kinds of evidence of `auto`, and how what else is known changes the odds."""

import pytest

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.evidence import (
    AFFINITY_ODDS,
    EVIDENCE,
    RECALLED,
    RIVAL_ODDS,
    SILENT,
    SUPPORT_ODDS,
    bucket,
    copy_evidence,
    match_evidence,
    priors,
    recall_evidence,
    resumed_evidence,
    rewrite_evidence,
    rival_class,
    support_class,
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


def test_priors_are_probabilities_whatever_the_odds() -> None:
    rates = AcceptanceRates(priors())
    for kind in range(EVIDENCE + len(RECALLED)):
        for odds in (*AFFINITY_ODDS, *SUPPORT_ODDS, *RIVAL_ODDS):
            assert 0 < rates.of(bucket(kind, 999), odds) < 1


def test_what_always_followed_is_expected_more_than_what_sometimes_did() -> None:
    rates = AcceptanceRates(priors())
    pair = match_evidence(2, False)[Consensus.ALL]
    for where in (bucket(copy_evidence(9), 0), bucket(pair, 3)):
        always, mostly, once, rarely = (
            rates.of(where, AFFINITY_ODDS[bigram_affinity_of(*counts)])
            for counts in ((9, 0), (9, 2), (1, 2), (1, 40))
        )
        assert always > mostly > max(once, rarely)


@pytest.mark.parametrize("length", [1, 3, 6, 16])
def test_other_texts_that_go_on_alike_make_a_token_likelier(length: int) -> None:
    never, always = (SUPPORT_ODDS[support_class(length, share)] for share in (0.0, 1.0))
    assert never < 1 < always


def test_a_request_that_goes_on_otherwise_makes_a_recalled_token_less_likely() -> None:
    rates, where = AcceptanceRates(priors()), bucket(recall_evidence(4, 0.8), 0)
    classes = (SILENT, rival_class(0.5), rival_class(0.7), rival_class(1.0))
    probs = [rates.of(where, RIVAL_ODDS[one]) for one in classes]
    assert probs == sorted(probs, reverse=True)
    assert probs[0] > 2 * probs[-1]
