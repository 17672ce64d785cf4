"""What is learnt from verified and declined drafts, with and without estimates of their own."""

import pytest

from akunu_py.drafting.base import Draft
from akunu_py.drafting.confidence import PRIOR
from akunu_py.planning.acceptance import AcceptanceModel, DeclinedDraft


def draft(
    length: int = 4, *, match: int = 3, source: str = "a", expected: float | None = None
) -> Draft:
    own = () if expected is None else (expected,) * length
    return Draft(tuple(range(length)), source, match, None, own)


def test_an_unknown_source_has_the_prior() -> None:
    assert AcceptanceModel().accept_probs(draft()) == pytest.approx([PRIOR] * 4)


def test_positions_and_matches_are_distinguished() -> None:
    model = AcceptanceModel()
    for _ in range(60):
        model.learn(draft(match=3), 1)
        model.learn(draft(match=20), 4)
    short, long = model.accept_probs(draft(match=3)), model.accept_probs(draft(match=20))
    assert short[0] > 0.85
    assert short[1] < 0.15
    assert min(long) > 0.85


def test_a_new_match_length_starts_from_the_rate_of_its_source() -> None:
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


def test_a_drafters_own_estimates_are_used() -> None:
    assert AcceptanceModel().accept_probs(draft(expected=0.3)) == pytest.approx([0.3] * 4)


@pytest.mark.parametrize(("claimed", "true"), [(0.9, 0.2), (0.2, 0.9)])
def test_wrong_estimates_are_corrected(claimed: float, true: float) -> None:
    model = AcceptanceModel()
    for at in range(200):
        model.learn_token(draft(expected=claimed), 0, accepted=at % 10 < 10 * true)
    assert model.accept_probs(draft(expected=claimed))[0] == pytest.approx(true, abs=0.15)


@pytest.mark.parametrize("expected", [float("nan"), float("inf"), -1.0, 2.0])
def test_impossible_estimates_are_clamped(expected: float) -> None:
    model = AcceptanceModel()
    model.learn(draft(expected=expected), 2)
    assert all(0 < prob < 1 for prob in model.accept_probs(draft(expected=expected)))


class TestDeclinedDraft:
    def test_a_declined_draft_teaches_acceptance_up_to_its_first_miss(self) -> None:
        acceptance = AcceptanceModel()
        declined = DeclinedDraft(acceptance)
        for _ in range(100):
            declined.decline(draft())
            declined.follow((0,))
            declined.follow((7, 2))
        # Its first token was accepted each time, its second never.
        first, second, *_ = acceptance.accept_probs(draft())
        assert first > 0.9
        assert second < 0.1

    def test_a_second_declined_draft_is_ignored_until_the_first_is_settled(self) -> None:
        acceptance = AcceptanceModel()
        declined = DeclinedDraft(acceptance)
        for _ in range(100):
            declined.decline(draft(2))
            declined.follow((0,))
            declined.decline(draft(2, source="b"))
            declined.follow((1,))
        assert min(acceptance.accept_probs(draft(2))) > 0.9
        assert acceptance.accept_probs(draft(source="b"))[0] == pytest.approx(PRIOR)

    def test_a_declined_draft_is_forgotten_with_its_request(self) -> None:
        acceptance = AcceptanceModel()
        declined = DeclinedDraft(acceptance)
        declined.decline(draft())
        declined.begin()
        declined.follow((9,))
        assert acceptance.accept_probs(draft()) == pytest.approx([PRIOR] * 4)
