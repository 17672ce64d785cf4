"""What speculation keeps from one request to the next, and what it keeps apart."""

import pytest

from akunu_py.decoding.speculator import Speculator
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.planning.planner import FixedPlanner
from akunu_py.sampling.token_chooser import TokenChooser

CHOOSER = TokenChooser(Sampling())


@pytest.fixture
def speculator(engine: Engine) -> Speculator:
    return engine.speculator


def test_requests_of_a_kind_share_what_is_learnt(speculator: Speculator) -> None:
    for gap in (False, True):
        drafter = speculator.drafter("auto", CHOOSER, fills_gap=gap)
        assert speculator.drafter("auto", CHOOSER, fills_gap=gap) is drafter
        planner = speculator.planner(Options(), fills_gap=gap)
        assert speculator.planner(Options(), fills_gap=gap) is planner


def test_gaps_and_other_requests_share_costs_alone(speculator: Speculator) -> None:
    drafters = [speculator.drafter("auto", CHOOSER, fills_gap=gap) for gap in (False, True)]
    assert drafters[0] is not drafters[1]
    planners = [speculator.planner(Options(), fills_gap=gap) for gap in (False, True)]
    assert planners[0] is not planners[1]
    assert planners[0]._costs is planners[1]._costs  # type: ignore[attr-defined]


def test_a_fixed_length_knows_nothing(speculator: Speculator) -> None:
    planner = speculator.planner(Options(num_draft_tokens=3), fills_gap=True)
    assert isinstance(planner, FixedPlanner)
    assert speculator.buffer.max_drafts == 3
