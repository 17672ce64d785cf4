"""The report on what forwards cost."""

import pytest

from akunu_py.bench.cost_report import CostReport
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from tests.planning.curves import STEPPED


def test_the_report_says_which_rounds_are_padded_and_what_they_then_cost() -> None:
    rounds = ((1, 0.010), (4, 0.040), (8, 0.012), (16, 0.030))
    report = CostReport({}, {}, CostCurve((CostLevel(128, 0.009, rounds),)).padded)
    (line,) = report.padding()
    assert line.endswith("2-7 to 8.")
    heads, rows = report.costs()
    assert heads == ("M", "128", "of a step")
    assert [row[:2] for row in rows[2:]] == [("4", "12.00"), ("8", "12.00"), ("16", "30.00")]


@pytest.mark.parametrize("curve", [STEPPED, STEPPED.padded])
def test_and_nothing_of_padding_where_there_is_none(curve: CostCurve) -> None:
    assert not CostReport({}, {}, curve).padding()
