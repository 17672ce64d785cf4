"""Spreads, reports as files, and the report on what forwards cost."""

from pathlib import Path

import pytest

from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import Spread, write_report
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


def test_quartiles_lie_within_the_measurements() -> None:
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    assert Spread.of([1.0, 14.0]) == Spread(7.5, 1.0, 14.0)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0)


def test_a_spread_is_printed_with_its_bounds() -> None:
    assert f"{Spread(1.5, 1.25, 1.75):.2f}" == "1.50 (1.25-1.75)"


def test_a_report_is_markdown_and_json_only_if_something_was_found(tmp_path: Path) -> None:
    text = write_report(tmp_path / "v1.2", "Costs", ["One.", "Two.\n"])
    assert (tmp_path / "v1.2.md").read_text() == text == "# Costs\n\nOne.\n\nTwo.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["v1.2.md"]
    write_report(tmp_path / "v1.2", "Costs", [], {"a": 1})
    assert (tmp_path / "v1.2.json").read_text() == '{\n "a": 1\n}\n'
