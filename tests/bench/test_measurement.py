from pathlib import Path

from akunu_py.bench.measurement import Spread, write_report


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
