"""Costs that are corrected by the times of real rounds."""

import pytest

from akunu_py.planning.costs import LiveCosts
from tests.planning.curves import FLAT, STEPPED


def test_a_few_steps_at_another_speed_count_once_steps_are_known() -> None:
    costs, usual = LiveCosts(STEPPED, 33), STEPPED.decode_s(256)
    for _ in range(100):
        costs.observe(0, usual, 256)
    for _ in range(16):
        costs.observe(0, 1.5 * usual, 256)
    assert 1.2 < costs.decode_s(256) / usual < 1.6


def test_steps_at_one_context_say_nothing_of_another() -> None:
    """Short and long requests in turn; long steps take three times as long as told."""
    costs, short, long = LiveCosts(STEPPED, 33), 256, 65_536
    usual = STEPPED.decode_s(short)
    for _ in range(20):
        costs.observe(0, usual, short)
        costs.observe(0, 3 * usual, long)
    for _ in range(8):
        for _ in range(8):
            costs.observe(0, usual, short)
        costs.observe(0, 3 * usual, long)
        assert costs.decode_s(long) == pytest.approx(3 * usual, rel=0.05)


@pytest.mark.parametrize(("tokens", "factor"), [(0, 0.2), (0, 5.0), (1, 5.0), (9, 5.0)])
def test_one_time_that_is_off_changes_no_ratio(tokens: int, factor: float) -> None:
    """A machine that does something else for a moment must not end drafting."""
    costs = LiveCosts(STEPPED, 33)
    before = [cost / costs.decode_s(256) for cost in costs.verify_table(256, 33)]
    costs.observe(tokens, factor * costs.verify_s(tokens, 256), 256)
    for _ in range(3):
        costs.observe(0, STEPPED.decode_s(256), 256)
    after = [cost / costs.decode_s(256) for cost in costs.verify_table(256, 33)]
    assert after == pytest.approx(before, rel=0.02)


def test_no_number_of_surprises_makes_a_doubt_endless() -> None:
    costs = LiveCosts(STEPPED, 33)
    for number in range(4000):
        costs.observe(5, (1 + 9 * (number // 4 % 2)) * STEPPED.verify_s(5, 256), 256)
    assert max(costs.doubts(256, 0)) <= 3.0


def test_a_slower_machine_raises_all_costs() -> None:
    costs = LiveCosts(STEPPED, 33)
    for _ in range(60):
        costs.observe(0, 2 * STEPPED.decode_s(256), 256)
    assert costs.decode_s(256) == pytest.approx(2 * STEPPED.decode_s(256), rel=0.1)
    assert costs.verify_table(256, 5)[4] > 1.5 * STEPPED.verify_s(5, 256)


@pytest.mark.parametrize("tokens", [0, 1])
def test_an_error_at_one_size_is_corrected_there(tokens: int) -> None:
    """Synchronised steps tell what pipelined ones cost as well."""
    usual = STEPPED.verify_s(1, 256) if tokens else STEPPED.decode_s(256)
    costs = LiveCosts(STEPPED, 33)
    for _ in range(150):
        costs.observe(tokens, usual, 256)
        costs.observe(5, 2 * STEPPED.verify_s(5, 256), 256)
    assert costs.decode_s(256) == pytest.approx(STEPPED.decode_s(256), rel=0.1)
    if not tokens:
        assert costs.verify_table(256, 5)[4] == pytest.approx(2 * STEPPED.verify_s(5, 256), rel=0.1)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_costs_begin_as_measured_and_invalid_times_are_ignored(seconds: float) -> None:
    told = FLAT.decode_s(256), FLAT.verify_table(256, 33)
    costs = LiveCosts(FLAT, 33)
    assert (costs.decode_s(256), costs.verify_table(256, 33)) == told
    costs.observe(0, seconds, 256)
    costs.observe(4, seconds, 256)
    costs.observe(99, 0.01, 256)
    assert (costs.decode_s(256), costs.verify_table(256, 33)) == told
