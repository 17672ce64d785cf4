"""Declined drafts teach acceptance; broken promises lower the share that a promise is worth."""

import pytest

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.declined_draft import DeclinedDraft, PromiseCalibration

DRAFT = Draft((1, 2, 3, 4), "auto", 5, None, (0.9, 0.9, 0.9, 0.9))


def test_broken_promises_lower_the_share_and_kept_ones_restore_it() -> None:
    calibration = PromiseCalibration()
    assert calibration.share == 1.0
    for _ in range(300):
        calibration.settle(4.0, 1)
    assert calibration.share == pytest.approx(0.25, abs=0.02)
    for _ in range(300):
        calibration.settle(4.0, 4)
    assert calibration.share > 0.95


def test_more_than_was_promised_hardly_raises_the_share() -> None:
    calibration = PromiseCalibration()
    for _ in range(300):
        calibration.settle(1.0, 8)
    assert 1.0 < calibration.share < 1.2


def test_a_declined_draft_teaches_acceptance_to_its_first_miss() -> None:
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
def test_a_draft_declined_because_of_the_share_is_settled(
    tokens: tuple[int, ...], kept: int
) -> None:
    calibration, expected = PromiseCalibration(), PromiseCalibration()
    declined_draft = DeclinedDraft(AcceptanceModel(), calibration)
    declined_draft.watch(DRAFT, wanted=2, promised=1.7)
    declined_draft.follow(tokens)
    expected.settle(1.7, kept)
    assert calibration.share == expected.share


def test_a_draft_that_was_not_worth_verifying_settles_nothing() -> None:
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
    declined_draft.begin()
    declined_draft.follow((9,))
    assert acceptance.accept_probs(DRAFT) == before
