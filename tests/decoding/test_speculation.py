"""What speculation keeps from one request to the next, and what it keeps apart."""

from typing import Any

import pytest

from akunu_py.decoding.speculation import SpeculationState
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.planner import FixedPlanner
from akunu_py.sampling.sampler import Sampler

SAMPLER = Sampler(Sampling())


@pytest.fixture
def speculation(engine: Engine) -> SpeculationState:
    return engine.speculation


def begin(speculation: SpeculationState, gap: bool, options: Options | None = None) -> Any:
    return speculation.session(options or Options(), SAMPLER, [1, 2, 3], fills_gap=gap)


@pytest.mark.parametrize("gap", [False, True])
def test_a_request_drafts_with_what_the_one_before_it_learnt(
    speculation: SpeculationState, gap: bool
) -> None:
    first = begin(speculation, gap)
    first.release()
    second = begin(speculation, gap)
    assert (second._drafter, second._planner) == (first._drafter, first._planner)
    second.release()


def test_requests_at_the_same_time_share_only_what_is_learnt(speculation: SpeculationState) -> None:
    one, other = begin(speculation, False), begin(speculation, False)
    assert one._drafter is not other._drafter
    assert one._planner is not other._planner
    assert one._drafter._rates is other._drafter._rates
    assert one._planner._rates is other._planner._rates
    assert one._planner._costs is other._planner._costs
    one.release()
    other.release()
    one.release()  # twice gives nothing back twice
    again = [begin(speculation, False) for _ in range(2)]
    assert {id(session._drafter) for session in again} == {id(one._drafter), id(other._drafter)}
    for session in again:
        session.release()


def test_fill_ins_and_other_requests_share_only_costs(speculation: SpeculationState) -> None:
    one, other = begin(speculation, False), begin(speculation, True)
    assert one._drafter._rates is not other._drafter._rates
    assert one._planner._rates is not other._planner._rates
    assert one._planner._costs is other._planner._costs
    one.release()
    other.release()


def test_a_fixed_number_of_draft_tokens_learns_nothing(speculation: SpeculationState) -> None:
    assert isinstance(begin(speculation, True, Options(num_draft_tokens=3))._planner, FixedPlanner)


EDGE = CostCurve((CostLevel(128, 0.010, ((1, 0.010), (4, 0.040), (8, 0.012), (33, 0.020))),))
"""A round over eight tokens is faster than one over four, which is padded if it may be."""


@pytest.fixture
def padding(model: TargetModel) -> SpeculationState:
    return SpeculationState(model, find_backend(), lambda *_: EDGE.padded)


def test_forwards_of_several_sequences_cost_what_they_cost_without_padding(
    padding: SpeculationState,
) -> None:
    alone, together = padding.find_costs(), padding.batch_costs(2)
    assert together is not None
    assert EDGE.verify_s(4, 128) > 0.02
    for _ in range(2):
        assert alone.verify_table(128, 4)[3] == pytest.approx(0.012)
        assert together.verify_table(128, 4)[3] == pytest.approx(EDGE.verify_s(4, 128))
        padding.trust(EDGE.padded)
