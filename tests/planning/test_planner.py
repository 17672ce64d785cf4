"""The planner on simulated texts and on arbitrary drafts; no model, no clock."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import DOUBTFUL, MEASURED, CostCurve
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner, Situation
from akunu_py.planning.trials import PROBE_AFTER
from akunu_py.rounds import Round
from tests.planning.curves import FLAT, LINEAR, M1_LIKE, STEPPED, curve
from tests.planning.simulation import (
    CONTEXT,
    Oracle,
    Stretch,
    Text,
    regret_s,
    seconds_for,
    simulate,
)

CURVES = {"flat": FLAT, "linear": LINEAR, "stepped": STEPPED, "M1": M1_LIKE}
TEXTS = {
    "copy": [Stretch(600, 0.97, 12)],
    "edit": [Stretch(40, 0.97, 12), Stretch(4, None), Stretch(10, 0.4, 1)] * 12,
    "prose": [Stretch(30, None), Stretch(6, 0.25, 1)] * 20,
    "middling": [Stretch(500, 0.6, 3)],
    "mixed": [Stretch(60, None), Stretch(120, 0.9, 8), Stretch(80, 0.35, 2)] * 4,
    "novel": [Stretch(500, 0.05, 1)],
}


def certain(length: int, prob: float = 0.99) -> Draft:
    return Draft(tuple(range(length)), "test", 8, None, (prob,) * length)


def chosen(planner: DraftPlanner, draft: Draft, *, pipelined: bool = False) -> int:
    return planner.choose(draft, Situation(CONTEXT, 32, pipelined=pipelined))


@pytest.mark.parametrize(
    ("costs", "prob", "length"),
    [
        (FLAT, 0.99, 12),  # as long as possible
        (LINEAR, 1.0, 0),
        (STEPPED, 0.8, 4),  # to before the next step
        (STEPPED, 0.999, 9),
        (M1_LIKE, 0.5, 0),
        (M1_LIKE, 0.8, 0),
        (M1_LIKE, 0.999, 12),
    ],
)
def test_drafts_are_as_long_as_they_pay(costs: CostCurve, prob: float, length: int) -> None:
    assert chosen(DraftPlanner(costs), certain(12, prob)) == length


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", CURVES)
def test_the_planner_is_as_good_as_the_best_fixed_length_and_an_oracle(
    name: str, text: str
) -> None:
    costs = CURVES[name]
    told, untold = (Text(TEXTS[text], has_probs=has_probs) for has_probs in (True, False))
    # Without estimates, a fixed number is kept.
    best_fixed = min(
        seconds_for(untold, costs, FixedPlanner(k)) for k in (0, 1, 2, 4, 5, 9, 16, 32)
    )
    oracle = seconds_for(told, costs, Oracle(costs))
    for met in (told, untold):
        assert seconds_for(met, costs, DraftPlanner(costs)) <= min(best_fixed, oracle) / 0.9


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("text", ["novel", "prose"])
def test_the_planner_is_never_slower_if_drafts_fail(name: str, text: str) -> None:
    costs = CURVES[name]
    met = Text(TEXTS[text] * 4, seed=1, has_probs=False)
    plain = seconds_for(met, costs, FixedPlanner(0))
    assert seconds_for(met, costs, DraftPlanner(costs)) <= plain / 0.98


def test_a_wrong_curve_is_corrected_by_live_rounds() -> None:
    """Rounds with drafts take 2.5 times what was measured, and so do not pay."""
    costs = curve(lambda size: 10.0 + 0.2 * size)
    met = Text([Stretch(30, None), Stretch(30, 0.55)] * 60, has_probs=False)
    plain = seconds_for(met, costs, FixedPlanner(0))
    believed = seconds_for(met, costs, FixedPlanner(4), slower=2.5)
    assert plain < believed
    assert seconds_for(met, costs, DraftPlanner(costs), slower=2.5) < plain * 1.06


class Waiting(DraftPlanner):
    """No step is submitted ahead, as with a sampler that waits for the logits."""

    def pipeline_gain(self, context: int) -> float:
        return -1.0


def test_a_wrong_curve_is_corrected_if_no_step_is_pipelined() -> None:
    believed = curve(lambda size: 10.0 if size == 1 else 80.0 + size)
    costs = curve(lambda size: 10.0 + 0.1 * size)
    met = Text([Stretch(2000, 0.8)])
    plain = 0.010 * len(met)
    assert seconds_for(met, costs, Waiting(believed)) < 0.5 * plain


def test_a_planner_that_declines_all_notices_when_a_text_becomes_predictable() -> None:
    costs = STEPPED
    met = Text([Stretch(800, 0.03), Stretch(800, 0.95)], has_probs=False)
    plain = seconds_for(met, costs, FixedPlanner(0))
    assert seconds_for(met, costs, DraftPlanner(costs)) < 0.75 * plain


def test_a_draft_must_pay_for_refilling_the_pipeline() -> None:
    costs = curve(lambda size: 12.0 + 0.1 * size, overlap=5.0)
    draft = certain(1, 0.8)
    assert chosen(DraftPlanner(costs), draft, pipelined=False) == 1
    assert chosen(DraftPlanner(costs), draft, pipelined=True) == 0


class TestProposals:
    def proposed(self, planner: DraftPlanner, seconds: float) -> int:
        """How many of 100 pipelined steps ask for a proposal that leads to no draft."""
        asked = 0
        for _ in range(100):
            if planner.should_propose():
                planner.observe_proposal(seconds)
                asked += 1
        return asked

    def test_quick_proposals_are_made_at_every_step(self) -> None:
        assert self.proposed(DraftPlanner(FLAT), 0.01 * FLAT.decode_s(0)) == 100

    def test_slow_ones_become_rarer_until_one_leads_to_a_draft(self) -> None:
        planner = DraftPlanner(FLAT)
        assert self.proposed(planner, FLAT.decode_s(0)) < 20
        assert chosen(planner, certain(8)) > 0
        assert planner.should_propose()


class TestPipelining:
    def step(self, planner: DraftPlanner, draft: Draft) -> bool:
        """A single step and the proposal after it; whether the next step is pipelined."""
        planner.observe(Round((7,), NO_DRAFT, 0, CONTEXT, False, None))
        planner.should_propose()
        planner.choose(draft, Situation(CONTEXT, 8, pipelined=False))
        return planner.pipeline_gain(CONTEXT) >= 0

    def test_steps_are_pipelined_while_nothing_is_drafted(self) -> None:
        planner = DraftPlanner(curve(lambda size: 12.0 + 0.1 * size, overlap=2.0))
        assert all(self.step(planner, NO_DRAFT) for _ in range(10))

    def test_steps_are_not_pipelined_if_drafts_follow_them(self) -> None:
        planner = DraftPlanner(curve(lambda size: 12.0 + 0.1 * size, overlap=2.0))
        ran = [self.step(planner, certain(8)) for _ in range(10)]
        assert ran[0]
        assert not ran[-1]
        ran = [self.step(planner, NO_DRAFT) for _ in range(20)]
        assert not ran[0]
        assert ran[-1]

    def test_steps_are_pipelined_if_drafts_are_not_worth_waiting_for(self) -> None:
        planner = DraftPlanner(curve(lambda size: 12.0 + 0.1 * size, overlap=9.0))
        assert all(self.step(planner, certain(1, 0.3)) for _ in range(20))


class TestProbes:
    def decline(self, planner: DraftPlanner, times: int) -> int:
        """Declines drafts while steps are pipelined; how many were verified anyway."""
        probes = 0
        for at in range(times):
            if planner.choose(certain(4, 0.9), Situation(CONTEXT, 8, pipelined=True)):
                probes += 1
                length = planner.choose(certain(4, 0.9), Situation(CONTEXT, 8, pipelined=False))
                assert length >= 1
                draft = certain(4, 0.9).cut(length)
                planner.observe(Round((0, 9), draft, 1, CONTEXT, False, None))
            planner.observe(Round((100 + at,), NO_DRAFT, 0, CONTEXT, True, None))
        return probes

    def test_probes_are_rare(self) -> None:
        planner = DraftPlanner(LINEAR)
        assert self.decline(planner, PROBE_AFTER - 1) == 0
        assert self.decline(planner, 1) == 1
        assert self.decline(planner, PROBE_AFTER - 1) == 0

    def test_a_doubtful_length_is_tried_once_the_pipeline_was_ended_for_it(self) -> None:
        """Ending it costs more than probes have saved up, but is in vain without the probe."""
        costs = curve(lambda size: 10.0 * size, overlap=2.0)
        planner = DraftPlanner(replace(costs, doubt=DOUBTFUL))
        assert chosen(planner, certain(4, 0.6), pipelined=True) > 0
        planner.observe(Round((1,), NO_DRAFT, 0, CONTEXT, True, costs.decode_s(CONTEXT)))
        assert chosen(planner, certain(4, 0.6)) > 0
        assert planner.is_probe

    def test_a_probe_is_forgotten_with_its_request(self) -> None:
        planner = DraftPlanner(LINEAR)
        self.decline(planner, PROBE_AFTER - 1)
        assert chosen(planner, certain(4), pipelined=True) > 0
        planner.begin()
        assert chosen(planner, certain(4)) == 0


drafts = st.builds(
    lambda tokens, source, match, expected: Draft(
        tuple(tokens), source, match, None, tuple(expected[: len(tokens)])
    ),
    st.lists(st.integers(0, 5), max_size=40),
    st.sampled_from(["a", "b", ""]),
    st.integers(-1, 1000),
    st.one_of(st.just([]), st.lists(st.floats(), min_size=40, max_size=40)),
)


@given(
    rounds=st.lists(
        st.tuples(
            drafts,
            st.integers(0, 40),
            st.integers(0, 10**6),
            st.booleans(),
            st.integers(0, 40),
            st.one_of(st.none(), st.floats()),
            st.lists(st.integers(0, 5), max_size=6),
        ),
        max_size=30,
    ),
    costs=st.sampled_from(list(CURVES.values())),
    longest=st.integers(0, 32),
)
def test_no_planner_raises_or_exceeds_its_limits(
    rounds: list[tuple[Draft, int, int, bool, int, float | None, list[int]]],
    costs: CostCurve,
    longest: int,
) -> None:
    limits = (DraftPlanner(costs), MAX_PLANNED_TOKENS), (FixedPlanner(longest), longest)
    for planner, most in limits:
        planner.begin()
        proposed = False
        for draft, limit, context, pipelined, accepted, seconds, tokens in rounds:
            planner.should_propose()
            assert planner.pipeline_gain(context) >= 0 or proposed
            proposed = proposed or bool(draft)
            length = planner.choose(draft, Situation(context, limit, pipelined=pipelined))
            assert 0 <= length <= min(limit, len(draft), most)
            tried = draft.cut(length) if length else NO_DRAFT
            kept = min(accepted, length)
            planner.observe(Round(tuple(tokens), tried, kept, context, pipelined, seconds))


def test_the_fixed_planner_takes_what_there_is_up_to_its_number() -> None:
    planner = FixedPlanner(4)
    for available, limit, length in ((9, 9, 4), (3, 9, 3), (9, 2, 2), (0, 9, 0)):
        chose = planner.choose(certain(available), Situation(0, limit, pipelined=False))
        assert chose == length


WRONG: dict[str, Callable[[int, float], float]] = {
    "all x 5": lambda _, cost: 5 * cost,
    "all / 5": lambda _, cost: cost / 5,
    "2 rows and more x 5": lambda rows, cost: cost * (5 if rows > 1 else 1),
    "flat": lambda rows, _: 10.0 + 0.01 * rows,
    "linear": lambda rows, _: 10.0 * rows,
    "greedy, where each row is sorted": lambda rows, cost: max(5.0, cost - 0.4 * rows),
}
"""What is believed of rounds, in ms, by their rows and their true cost."""


def since_2000(name: str, planner: Planner, noise: float) -> float:
    rounds = simulate(Text(TEXTS["mixed"] * 3, seed=3), CURVES[name], planner, noise=noise)
    return sum(done.seconds for done in rounds if done.start >= 2000)


@cache
def best_fixed_since_2000(name: str) -> float:
    return min(since_2000(name, FixedPlanner(k), 0.0) for k in (0, 1, 4, 9, 32))


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", CURVES)
def test_wrong_costs_are_corrected_within_2000_tokens(name: str, wrong: str) -> None:
    true = CURVES[name]
    believed = curve(lambda rows: WRONG[wrong](rows, 1000 * true.verify_s(rows, CONTEXT)))

    ours = since_2000(name, DraftPlanner(replace(believed, doubt=DOUBTFUL)), 0.1)
    assert 0.95 * ours < best_fixed_since_2000(name)


@pytest.mark.parametrize(("seed", "doubt"), [(0, MEASURED), (1, DOUBTFUL), (2, DOUBTFUL)])
def test_load_that_comes_and_goes_teaches_no_wrong_costs(seed: int, doubt: float) -> None:
    """Each row costs most of a step, so that drafts never pay."""
    costs = curve(lambda rows: 10.0 * (0.2 + 0.8 * rows))
    met = Text([Stretch(6000, 0.8, 3)], seed=seed)

    def idle_s(planner: Planner) -> float:
        """The seconds that the rounds after the first 3,000 tokens would take without load."""
        rows, step = costs.verify_table(CONTEXT, 33), costs.decode_s(CONTEXT)
        done = simulate(met, costs, planner, noise=0.1, busy_s=2.0)
        return sum(rows[one.drafted] if one.drafted else step for one in done if one.start >= 3000)

    assert 0.9 * idle_s(DraftPlanner(replace(costs, doubt=doubt))) < idle_s(FixedPlanner(0))


@pytest.mark.parametrize("costs", [STEPPED, M1_LIKE], ids=["stepped", "M1"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_right_costs_lose_little_to_probes(costs: CostCurve, noise: float) -> None:
    met = Text(TEXTS["mixed"] * 2, seed=1)
    done = list(simulate(met, costs, DraftPlanner(costs), noise=noise))
    assert regret_s(done, met, costs, CONTEXT) < 0.005 * sum(one.seconds for one in done)
