"""What speculation keeps from one request to the next, and what it keeps apart."""

import pytest

from akunu_py.decoding.speculation import SpeculationState
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.planning.planner import FixedPlanner
from akunu_py.sampling.sampler import Sampler

SAMPLER = Sampler(Sampling())


@pytest.fixture
def speculation(engine: Engine) -> SpeculationState:
    return engine.speculation


def test_requests_of_one_kind_share_what_is_learnt(speculation: SpeculationState) -> None:
    for gap in (False, True):
        drafter = speculation.drafter("auto", SAMPLER, fills_gap=gap)
        assert speculation.drafter("auto", SAMPLER, fills_gap=gap) is drafter
        planner = speculation.planner(Options(), fills_gap=gap)
        assert speculation.planner(Options(), fills_gap=gap) is planner


def test_fill_ins_and_other_requests_share_only_costs(speculation: SpeculationState) -> None:
    drafters = [speculation.drafter("auto", SAMPLER, fills_gap=gap) for gap in (False, True)]
    assert drafters[0] is not drafters[1]
    planners = [speculation.planner(Options(), fills_gap=gap) for gap in (False, True)]
    assert planners[0] is not planners[1]
    assert planners[0]._costs is planners[1]._costs  # type: ignore[attr-defined]


def test_a_fixed_number_of_draft_tokens_learns_nothing(speculation: SpeculationState) -> None:
    planner = speculation.planner(Options(num_draft_tokens=3), fills_gap=True)
    assert isinstance(planner, FixedPlanner)
