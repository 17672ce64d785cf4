"""What speculation keeps from one request to the next, and what it keeps apart."""

import pytest

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.speculation import SpeculationState
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.costs import KnownCosts
from akunu_py.rounds import Round
from akunu_py.sampling.sampler import Sampler
from tests.planning.curves import FLAT

TEXT = list(range(100, 160))
PROMPT = [*TEXT, 1, *TEXT[:10]]


def begin(speculation: SpeculationState, *, gap: bool = False) -> DraftSession:
    return speculation.session(Options(), Sampler(Sampling()), PROMPT, fills_gap=gap)


def expectation(session: DraftSession) -> float:
    """How likely the first token of a copy is to be accepted, as far as the session knows."""
    session.begin(PROMPT)
    draft = session.propose(8, len(PROMPT) - 1)
    assert draft.tokens[:2] == tuple(TEXT[10:12])
    return draft.accept_probs[0]


def reject(session: DraftSession) -> None:
    for _ in range(20):
        session.begin(PROMPT)
        draft = session.propose(8, len(PROMPT) - 1)
        session.learn(Round((7,), draft, 0, len(PROMPT) - 1))


@pytest.fixture
def speculation(model: TargetModel) -> SpeculationState:
    return SpeculationState(model, KnownCosts(lambda: FLAT))


@pytest.mark.parametrize("gap", [False, True])
def test_a_request_drafts_with_what_the_one_before_it_learnt(
    speculation: SpeculationState, gap: bool
) -> None:
    first = begin(speculation, gap=gap)
    before = expectation(first)
    reject(first)
    first.release()
    assert expectation(begin(speculation, gap=gap)) < 0.9 * before
    assert expectation(begin(speculation, gap=not gap)) == before, "fill-ins learn apart"


def test_requests_at_the_same_time_share_what_is_learnt_and_no_text(
    speculation: SpeculationState,
) -> None:
    one, other = begin(speculation), begin(speculation)
    before = expectation(other)
    reject(one)
    other.begin([1, 2, 3])
    assert not other.propose(8, 2)
    assert expectation(other) < 0.9 * before


EDGE = CostCurve((CostLevel(128, 0.010, ((1, 0.010), (4, 0.040), (8, 0.012), (33, 0.020))),))
"""A round over eight tokens is faster than one over four, which is padded if it may be."""


def test_forwards_of_several_sequences_cost_what_they_cost_without_padding() -> None:
    padding = KnownCosts(lambda: EDGE.padded)
    alone, together = padding.alone(), padding.together(2)
    assert together is not None
    assert EDGE.verify_s(4, 128) > 0.02
    for _ in range(2):
        assert alone.verify_table(128, 4)[3] == pytest.approx(0.012)
        assert together.verify_table(128, 4)[3] == pytest.approx(EDGE.verify_s(4, 128))
        padding.trust(EDGE.padded)
