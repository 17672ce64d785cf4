"""What sequences draft that decode together, by what their forwards cost."""

from collections.abc import Sequence

import pytest

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.drafting.chain import Chain
from akunu_py.drafting.guessing import HeadGuesser
from akunu_py.planning.batch_planner import BatchPlanner, Company
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.costs import LiveCosts
from akunu_py.planning.theory import MAX_BATCH_ROWS
from akunu_py.planning.trials import PROBE_AFTER
from akunu_py.tokens import Origin
from tests.planning.curves import FLAT, LINEAR, curve

SURE = Draft((1, 2, 3), "copy", accept_probs=(0.95, 0.95, 0.95))
UNSURE = Draft((1, 2, 3), "copy", accept_probs=(0.3, 0.3, 0.3))
RISING = curve(lambda size: 10.0 + 0.75 * (size - 4))  # of four sequences, 1.3 steps for two each
FOUR = Company(4, 400, pads=False)
PADDED = Company(4, 400, pads=True)
NONE_KEPT = [0] * 4


class Unasked(HeadGuesser):
    def __init__(self) -> None:
        pass


def planner_of(costs: CostCurve) -> BatchPlanner:
    known = LiveCosts(costs, MAX_BATCH_ROWS)
    return BatchPlanner(lambda _: known, AcceptanceRates())


def ahead(
    planner: BatchPlanner, forecasts: Sequence[Draft], kept: Sequence[int] = NONE_KEPT
) -> bool | None:
    return planner.steps_ahead(forecasts, kept, FOUR, pipelined=True)


@pytest.mark.parametrize(
    ("costs", "company", "drafts", "wanted"),
    [
        (FLAT, FOUR, [SURE, UNSURE, NO_DRAFT, NO_DRAFT], [3, 3, 0, 0]),
        (LINEAR, FOUR, [SURE, UNSURE, NO_DRAFT, NO_DRAFT], [0, 0, 0, 0]),
        (RISING, FOUR, [SURE, UNSURE, NO_DRAFT, NO_DRAFT], [3, 0, 0, 0]),
        (RISING, PADDED, [SURE, NO_DRAFT, NO_DRAFT, NO_DRAFT], [0, 0, 0, 0]),
        (RISING, PADDED, [SURE] * 4, [3, 3, 3, 3]),
        (RISING, PADDED, [SURE, SURE.cut(1), SURE, SURE], [3, 1, 3, 3]),
    ],
)
def test_drafts_are_cut_to_what_they_are_worth_together(
    costs: CostCurve, company: Company, drafts: list[Draft], wanted: list[int]
) -> None:
    assert planner_of(costs).lengths(drafts, NONE_KEPT, company) == wanted


def test_what_is_kept_is_verified_whole_and_padding_to_it_is_free() -> None:
    planner, kept = planner_of(LINEAR), [3, 0, 0, 0]
    drafts = [UNSURE, UNSURE, NO_DRAFT, NO_DRAFT]
    assert planner.lengths(drafts, kept, FOUR) == [3, 0, 0, 0]
    assert planner.lengths(drafts, kept, PADDED) == [3, 3, 0, 0]


@pytest.mark.parametrize("sequences", [MAX_BATCH_ROWS, MAX_BATCH_ROWS + 2])
@pytest.mark.parametrize("pads", [False, True])
def test_more_rows_than_costs_are_known_for(sequences: int, pads: bool) -> None:
    planner, company = planner_of(FLAT), Company(sequences, 400, pads)
    drafts, none_kept = [UNSURE] * sequences, [0] * sequences
    assert planner.lengths(drafts, [3] * sequences, company) == [3] * sequences
    assert set(planner.lengths(drafts, none_kept, company)) <= {0, 3}
    chains = [Chain(Unasked(), AcceptanceRates())]
    assert planner.guesses_pay(chains, company) is (sequences > MAX_BATCH_ROWS)
    is_ahead = planner.steps_ahead(drafts, none_kept, company, pipelined=True)
    assert is_ahead is (True if sequences == MAX_BATCH_ROWS else None)


def test_without_costs_drafts_stay_as_they_are_and_nothing_is_known_of_steps() -> None:
    planner = BatchPlanner(lambda _: None, AcceptanceRates())
    assert planner.lengths([UNSURE] * 4, NONE_KEPT, FOUR) == [3] * 4
    assert ahead(planner, [NO_DRAFT] * 4) is None


def test_a_pipeline_ends_for_drafts_that_pay_in_company_and_for_no_others() -> None:
    assert ahead(planner_of(LINEAR), [SURE, SURE, NO_DRAFT, NO_DRAFT])
    assert not ahead(planner_of(FLAT), [SURE, SURE, NO_DRAFT, NO_DRAFT])


def test_a_pipeline_ends_for_what_is_verified_anyway() -> None:
    planner = planner_of(LINEAR)
    assert not ahead(planner, [SURE, NO_DRAFT, NO_DRAFT, NO_DRAFT], [3, 0, 0, 0])
    assert not ahead(planner, [Draft((-1,), Origin.HEAD), NO_DRAFT, NO_DRAFT, NO_DRAFT])


def test_there_is_no_pipeline_where_drafts_that_pay_often_follow_a_step() -> None:
    planner, nothing = planner_of(FLAT), [NO_DRAFT] * 4
    assert ahead(planner, nothing)
    for _ in range(10):
        planner.lengths(nothing, NONE_KEPT, FOUR)
        planner.lengths([SURE] * 4, NONE_KEPT, FOUR)
    assert not planner.steps_ahead(nothing, NONE_KEPT, FOUR, pipelined=False)
    for _ in range(40):
        planner.lengths(nothing, NONE_KEPT, FOUR)
    assert planner.steps_ahead(nothing, NONE_KEPT, FOUR, pipelined=False)


def test_guesses_are_made_where_all_gain_by_them_and_else_now_and_then() -> None:
    likely = AcceptanceRates({(Origin.HEAD, 0): 0.9})
    chains = [Chain(Unasked(), likely, guess_s=0.001) for _ in range(4)]
    assert planner_of(FLAT).guesses_pay(chains, FOUR)
    planner = planner_of(LINEAR)
    made = [planner.guesses_pay(chains, FOUR) for _ in range(2 * PROBE_AFTER + 10)]
    # Twice each time: the first time, a step may be in flight.
    assert [at for at, pays in enumerate(made) if pays] == [
        PROBE_AFTER - 1, PROBE_AFTER, 2 * PROBE_AFTER + 1, 2 * PROBE_AFTER + 2
    ]  # fmt: skip


def test_a_proposal_is_noted_once() -> None:
    planner = planner_of(FLAT)
    noted = list[float]()
    planner._note = noted.append  # type: ignore[assignment, method-assign]
    planner.lengths([NO_DRAFT] * 4, NONE_KEPT, FOUR)
    planner.steps_ahead([UNSURE] * 4, NONE_KEPT, FOUR, pipelined=True)
    planner.lengths([UNSURE] * 4, NONE_KEPT, FOUR)
    assert len(noted) == 1
