"""Declined drafts are watched, and drafts that promise too much lose trust."""

import pytest

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.shadow import Shadow, Trust

DRAFT = Draft((1, 2, 3, 4), "auto", 5, None, (0.9, 0.9, 0.9, 0.9))


def test_what_is_not_kept_costs_trust_and_what_is_kept_restores_it() -> None:
    trust = Trust()
    assert trust.share == 1.0
    for _ in range(300):
        trust.settle(4.0, 1)
    assert trust.share == pytest.approx(0.25, abs=0.02)
    for _ in range(300):
        trust.settle(4.0, 4)
    assert trust.share > 0.95


def test_more_than_was_promised_is_hardly_trusted_more() -> None:
    trust = Trust()
    for _ in range(300):
        trust.settle(1.0, 8)
    assert 1.0 < trust.share < 1.2


def test_a_watched_draft_teaches_acceptance_to_its_first_miss() -> None:
    acceptance = AcceptanceModel()
    shadow = Shadow(acceptance, Trust())
    for _ in range(100):
        shadow.watch(DRAFT)
        shadow.follow((1,))
        assert shadow
        shadow.follow((7, 3))
        assert not shadow
    # Its first token stood each time, its second never.
    first, second, *_ = acceptance.chances(DRAFT)
    assert first > 0.92
    assert second < 0.3


@pytest.mark.parametrize(("tokens", "kept"), [((1, 2, 3, 4), 2), ((1, 9), 1), ((9,), 0)])
def test_a_draft_declined_for_lack_of_trust_is_settled(tokens: tuple[int, ...], kept: int) -> None:
    trust, expected = Trust(), Trust()
    shadow = Shadow(AcceptanceModel(), trust)
    shadow.watch(DRAFT, wanted=2, promised=1.7)
    shadow.follow(tokens)
    expected.settle(1.7, kept)
    assert trust.share == expected.share


def test_a_draft_that_nobody_wanted_settles_nothing() -> None:
    trust = Trust()
    shadow = Shadow(AcceptanceModel(), trust)
    shadow.watch(DRAFT)
    shadow.follow((9,))
    assert trust.share == 1.0


def test_a_dropped_draft_teaches_nothing() -> None:
    acceptance = AcceptanceModel()
    before = acceptance.chances(DRAFT)
    shadow = Shadow(acceptance, Trust())
    shadow.watch(DRAFT, wanted=2, promised=1.7)
    shadow.drop()
    shadow.follow((9,))
    assert acceptance.chances(DRAFT) == before
