"""Declined drafts are watched, and drafts that promise too much lose calibration."""

import pytest

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.declined_draft import DeclinedDraft, PromiseCalibration

DRAFT = Draft((1, 2, 3, 4), "auto", 5, None, (0.9, 0.9, 0.9, 0.9))


def test_what_is_not_kept_costs_trust_and_what_is_kept_restores_it() -> None:
    calibration = PromiseCalibration()
    assert calibration.share == 1.0
    for _ in range(300):
        calibration.settle(4.0, 1)
    assert calibration.share == pytest.approx(0.25, abs=0.02)
    for _ in range(300):
        calibration.settle(4.0, 4)
    assert calibration.share > 0.95


def test_more_than_was_promised_is_hardly_trusted_more() -> None:
    calibration = PromiseCalibration()
    for _ in range(300):
        calibration.settle(1.0, 8)
    assert 1.0 < calibration.share < 1.2


def test_a_watched_draft_teaches_acceptance_to_its_first_miss() -> None:
    acceptance = AcceptanceModel()
    declined_draft = DeclinedDraft(acceptance, PromiseCalibration())
    for _ in range(100):
        declined_draft.watch(DRAFT)
        declined_draft.follow((1,))
        assert declined_draft
        declined_draft.follow((7, 3))
        assert not declined_draft
    # Its first token stood each time, its second never.
    first, second, *_ = acceptance.accept_probs(DRAFT)
    assert first > 0.92
    assert second < 0.3


@pytest.mark.parametrize(("tokens", "kept"), [((1, 2, 3, 4), 2), ((1, 9), 1), ((9,), 0)])
def test_a_draft_declined_for_lack_of_trust_is_settled(tokens: tuple[int, ...], kept: int) -> None:
    calibration, expected = PromiseCalibration(), PromiseCalibration()
    declined_draft = DeclinedDraft(AcceptanceModel(), calibration)
    declined_draft.watch(DRAFT, wanted=2, promised=1.7)
    declined_draft.follow(tokens)
    expected.settle(1.7, kept)
    assert calibration.share == expected.share


def test_a_draft_that_nobody_wanted_settles_nothing() -> None:
    calibration = PromiseCalibration()
    declined_draft = DeclinedDraft(AcceptanceModel(), calibration)
    declined_draft.watch(DRAFT)
    declined_draft.follow((9,))
    assert calibration.share == 1.0


def test_a_dropped_draft_teaches_nothing() -> None:
    acceptance = AcceptanceModel()
    before = acceptance.accept_probs(DRAFT)
    declined_draft = DeclinedDraft(acceptance, PromiseCalibration())
    declined_draft.watch(DRAFT, wanted=2, promised=1.7)
    declined_draft.drop()
    declined_draft.follow((9,))
    assert acceptance.accept_probs(DRAFT) == before
