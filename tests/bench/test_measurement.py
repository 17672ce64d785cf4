from random import Random

import pytest

from akunu_py.bench.measurement import Spread
from akunu_py.errors import InvalidRequestError


def test_the_interval_lies_around_the_median() -> None:
    values = [Random(1).gauss(2, 0.5) for _ in range(1)] + [1.0, 2.0, 3.0, 2.5, 1.5]
    interval = Spread.of_median(values)
    assert interval.low <= interval.median <= interval.high
    assert interval == Spread.of_median(values)


def test_one_measurement_is_its_own_interval() -> None:
    assert Spread.of_median([1.5]) == Spread(1.5, 1.5, 1.5)


def test_the_interval_covers_the_true_median_in_about_95_percent_of_cases() -> None:
    random, covered = Random(7), 0
    for _ in range(100):
        interval = Spread.of_median([random.gauss(0, 1) for _ in range(30)])
        covered += interval.low <= 0 <= interval.high
    assert 88 <= covered <= 100


def test_more_measurements_narrow_the_interval() -> None:
    random = Random(3)
    values = [random.random() for _ in range(400)]
    few, many = Spread.of_median(values[:20]), Spread.of_median(values)
    assert many.high - many.low < few.high - few.low


def test_no_measurements_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="1 measurement or more"):
        Spread.of_median([])


def test_quartiles_lie_within_the_measurements() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([1.0, 14.0]) == Spread(7.5, 1.0, 14.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)


def test_a_spread_is_printed_with_its_bounds() -> None:
    assert f"{Spread(1.5, 1.25, 1.75):.2f}" == "1.50 (1.25-1.75)"
