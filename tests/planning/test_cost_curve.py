"""Curves between measured points, and their form on disk."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from akunu_py.planning.cost_curve import CLEARLY_FASTER, CostCurve, CostLevel, never_falling
from tests.planning.curves import FLAT, LINEAR, M1_LIKE, STEPPED


def level(context: int, rounds: dict[int, float], step: float = 0.01) -> CostLevel:
    return CostLevel(context, step, tuple(rounds.items()))


TWO_LEVELS = CostCurve(
    (
        level(100, {1: 0.010, 2: 0.011, 5: 0.014, 6: 0.020, 16: 0.030}, step=0.009),
        level(1100, {1: 0.012, 6: 0.026}, step=0.011),
    )
)


def test_measured_points_come_back() -> None:
    for size, seconds in TWO_LEVELS.levels[0].verify_s:
        assert TWO_LEVELS.verify_s(size, 100) == pytest.approx(seconds)
    assert TWO_LEVELS.decode_s(100) == 0.009


def test_costs_between_points_are_linear() -> None:
    assert TWO_LEVELS.verify_s(3, 100) == pytest.approx(0.012)
    assert TWO_LEVELS.verify_s(11, 100) == pytest.approx(0.025)


def test_costs_beyond_the_points_continue_to_rise() -> None:
    assert (
        TWO_LEVELS.verify_s(32, 100) > TWO_LEVELS.verify_s(24, 100) > TWO_LEVELS.verify_s(16, 100)
    )
    assert TWO_LEVELS.verify_s(16, 4100) > TWO_LEVELS.verify_s(16, 1100)


def test_a_longer_context_keeps_the_steps_of_the_shorter() -> None:
    jump = TWO_LEVELS.verify_s(6, 600) - TWO_LEVELS.verify_s(5, 600)
    assert jump > 0.006
    assert TWO_LEVELS.verify_s(6, 1100) == pytest.approx(0.026)
    assert TWO_LEVELS.decode_s(600) == pytest.approx(0.010)


positive = st.floats(1e-4, 1.0)
SIZES_ONLY_IN_THE_MIDDLE = CostCurve(
    (level(0, {1: 0.5}, 1.0), level(1, {1: 0.5, 2: 1.0, 3: 1.0}, 1.0), level(2, {1: 0.5}, 1.0))
)


@st.composite
def curves(draw: st.DrawFn) -> CostCurve:
    contexts = sorted(draw(st.sets(st.integers(0, 5000), min_size=1, max_size=3)))
    levels = []
    for context in contexts:
        sizes = sorted({1} | draw(st.sets(st.integers(2, 33), max_size=8)))
        levels.append(level(context, {size: draw(positive) for size in sizes}, draw(positive)))
    return CostCurve(tuple(levels))


@given(curve=curves(), context=st.integers(0, 20_000))
@example(SIZES_ONLY_IN_THE_MIDDLE, 1)
def test_no_cost_falls_with_tokens_or_with_context(curve: CostCurve, context: int) -> None:
    costs = curve.verify_table(context, 40)
    assert all(low <= high + 1e-12 for low, high in pairwise(costs))
    later = curve.verify_table(context + 500, 40)
    assert all(low <= high + 1e-12 for low, high in zip(costs, later, strict=True))
    assert curve.decode_s(context) <= curve.decode_s(context + 500) + 1e-12


@given(curve=curves(), context=st.integers(0, 20_000))
def test_a_pipelined_step_never_costs_more_than_a_round_of_one_token(
    curve: CostCurve, context: int
) -> None:
    alone = [level.verify_s[0][1] for level in curve.levels]
    assert curve.decode_s(min(context, curve.levels[-1].context)) <= max(alone) + 1e-12


def test_never_falling_keeps_rising_points_and_averages_falling_ones() -> None:
    assert never_falling([(1, 1.0), (2, 2.0), (3, 3.0)]) == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert never_falling([(1, 1.0), (2, 3.0), (3, 2.0)]) == [(1, 1.0), (2, 2.5), (3, 2.5)]


EDGE = CostCurve(
    (
        level(128, {1: 0.005, 2: 0.007, 4: 0.014, 6: 0.021, 8: 0.006, 16: 0.0065, 33: 0.009}),
        level(1024, {1: 0.006, 8: 0.009, 17: 0.010}),
    )
)
"""Costs like those of MLX's CUDA kernels: one row after another up to 7, many from 8 on."""


def test_rounds_are_padded_to_where_many_rows_are_clearly_faster() -> None:
    assert EDGE.padding == dict.fromkeys(range(2, 8), 8)
    padded = EDGE.padded
    assert padded.verify_table(128, 8)[1:] == [0.006] * 7
    assert padded.verify_s(5, 1024) < padded.verify_s(8, 1024) == pytest.approx(0.009)
    assert padded.verify_s(33, 128) == 0.009
    assert padded.unpadded == EDGE
    assert EDGE.verify_s(4, 128) > 0.01
    assert CostCurve.from_json(json.loads(json.dumps(padded.as_json()))) == padded


@pytest.mark.parametrize("curve", [FLAT, LINEAR, STEPPED, M1_LIKE, TWO_LEVELS])
def test_rounds_are_not_padded_for_nothing(curve: CostCurve) -> None:
    assert not curve.padding
    assert curve.padded is curve
    assert not CostCurve((level(128, {1: 0.010, 2: 0.012, 8: 0.0115}),)).padding


@given(curve=curves())
@example(CostCurve((level(0, {1: 5.0, 5: 12.5, 8: 8.0}),)))
def test_a_padded_round_costs_what_its_size_costs(curve: CostCurve) -> None:
    """Up to pooling, which averages costs that fall from one size to the next."""
    first = curve.levels[0]
    measured = dict(first.verify_s)
    known, seconds = zip(*first.verify_s, strict=True)
    for tokens, size in curve.padding.items():
        assert tokens < size
        assert size not in curve.padding
        assert curve.padded.verify_s(tokens, 0) <= curve.padded.verify_s(size, 0)
        assert measured[size] < CLEARLY_FASTER * np.interp(tokens, known, seconds) * (1 + 1e-9)


@pytest.mark.parametrize("curve", [FLAT, LINEAR, STEPPED, TWO_LEVELS])
def test_a_curve_survives_json(curve: CostCurve) -> None:
    assert CostCurve.from_json(json.loads(json.dumps(curve.as_json()))) == curve


def damaged(**changes: Any) -> Any:
    data = TWO_LEVELS.as_json()
    data["levels"][0] |= changes
    return data


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"levels": []},
        {"levels": 3},
        {"levels": [{}]},
        damaged(step_s="fast"),
        damaged(step_s=-1.0),
        damaged(step_s=float("nan")),
        damaged(step_s=True),
        damaged(step_s=1e9),
        damaged(step_s=1e-6),
        damaged(context=1100),
        damaged(context=1.5),
        damaged(rounds_s={}),
        damaged(rounds_s={"2": 0.01}),
        damaged(rounds_s={"1": 0.01, "0": 0.01}),
        damaged(rounds_s={"1": 0.01, "two": 0.01}),
        damaged(rounds_s={"1": 0.01, "2": 0.5}),
        damaged(rounds_s={"1": 0.01, "2": 0.0001}),
        damaged(rounds_s={"1": 0.01, "99999999": 0.02}),
        damaged(rounds_s=[[1, 0.01]]),
    ],
)
def test_damaged_and_implausible_curves_are_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CostCurve.from_json(data)
