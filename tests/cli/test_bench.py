"""`bench cost`, `bench speedup` and `bench replay` as a user runs them, on the tiny model."""

import json
from pathlib import Path

import pytest

from akunu_py import loading
from akunu_py.__main__ import main
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.package import CACHE_VARIABLE
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from tests.planning.curves import STEPPED

CODE = "def area(width, height):\n    return width * height\n"


class TestCost:
    @pytest.fixture
    def words(
        self, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> list[str]:
        """The command, on a machine whose costs are given."""
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: STEPPED)
        monkeypatch.setattr(RowClassSearch, "find", lambda *_: None)
        return ["bench", "cost", "--model", str(tiny_model_dir)]

    def test_tables(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "1, pipelined" in out
        assert "break-even" in out
        assert "3.10" in out
        assert "Drafting pays here" in out

    def test_it_prints_json_and_the_engine_uses_what_it_measured(
        self, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["drafts"][3]["break_even_acceptance"] == pytest.approx(0.1, abs=0.01)
        assert len(list((tmp_path / "cache" / "costs").iterdir())) == 1

    @pytest.mark.parametrize(("busy", "code"), [(2, 0), (3, 2)])
    def test_costs_that_other_work_distorts_are_measured_again(
        self, words: list[str], busy: int, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        falling = CostCurve((CostLevel(128, 0.04, ((1, 0.043), (33, 0.001))),))
        found = iter([*[falling] * busy, STEPPED])
        monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: next(found))
        assert main(words) == code


class TestSpeedup:
    @pytest.fixture
    def words(self, tiny_model_dir: Path, tmp_path: Path) -> list[str]:
        data = tmp_path / "mine.jsonl"
        sample = {"prompt": "ab ab ab ab ", "reference": "ab ab ab ab ab "}
        data.write_text(json.dumps(sample) + "\n")
        return [
            "bench", "speedup", "--model", str(tiny_model_dir), "--data", str(data), "--workloads",
            "--quick", "--max-tokens", "8", "--drafter", "auto", "--num-draft-tokens", "auto", "4",
        ]  # fmt: skip

    def test_tables_for_own_and_forced_answers(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(words) == 0
        out = capsys.readouterr().out
        rows = {tuple(line.split()[:4]) for line in out.splitlines()}
        assert {("mine", answers, "auto", "+") for answers in ("own", "forced")} <= rows
        assert "apart in the median" in out

    def test_it_prints_json(
        self, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--answers", "forced", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["machine"]["mlx"]
        names = [row["contestant"] for row in found["rows"]]
        assert names[:3] == ["mlx-lm", "plain", "auto + planner"]
        assert names[3].startswith("auto, ")
        for row in found["rows"]:
            assert (row["workload"], row["answers"]) == ("mine", "forced")
            assert row["speedup"]["median"] > 0
        assert found["rows"][2]["shares"].keys() == {
            "drafting",
            "forward",
            "building",
            "detokenizing",
            "rest",
        }


class TestReplay:
    @pytest.fixture
    def edits(self, tmp_path: Path) -> Path:
        path = tmp_path / "edits.jsonl"
        line = {"instruction": "Rename.", "input": CODE, "output": CODE.replace("width", "w")}
        path.write_text(f"{json.dumps(line)}\n" * 3)
        return path

    @pytest.fixture
    def words(
        self, edits: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> list[str]:
        """The command, where no model can be loaded."""
        monkeypatch.setattr(loading, "load", None)
        return ["bench", "replay", str(edits), "--model", str(tiny_model_dir)]

    def test_a_line_for_every_policy_with_the_speedups_of_all_curves(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        words += ["--num-draft-tokens", "auto", "4"]
        found = {}
        for name in ("m4-pro", "m3-ultra"):
            assert main([*words, "--costs", name, "--json"]) == 0
            rows = json.loads(capsys.readouterr().out)["rows"]
            found[name] = [f"{row['predicted_speedup']:.2f}x" for row in rows]
        assert main([*words, "--costs", *found]) == 0
        out = capsys.readouterr().out
        assert "\nedits: 3 requests" in out
        lines = [line.split() for line in out.splitlines() if line.startswith((" auto", " ngram"))]
        assert [tuple(line[-2:]) for line in lines] == list(zip(*found.values(), strict=True))
        assert "Nothing here was measured" in out
        assert "mlx/issues/3852" in out

    def test_it_prints_json(
        self, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words += ["--costs", "m5-max", "--drafter", "auto", "--num-draft-tokens", "auto", "4"]
        assert main([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert "prediction" in found["note"]
        assert found["sets"]["edits"]["requests"] == 3
        planned, fixed = found["rows"]
        assert (planned["num_draft_tokens"], fixed["num_draft_tokens"]) == (None, 4)
        for row in found["rows"]:
            assert row["predicted_speedup"] > 1.2
            assert row["drafted"] >= row["accepted"] > 0
            assert row["emitted"] == found["sets"]["edits"]["reference_tokens"]

    def test_fewer_requests_can_be_taken(
        self, words: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([*words, "--costs", "m5-max", "--max-requests", "1"]) == 0
        assert "edits: 1 request, " in capsys.readouterr().out

    def test_the_name_of_a_file_is_printed_as_it_is(
        self, words: list[str], edits: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words[2] = str(edits.rename(edits.with_name("[red]mine :smile:.jsonl")))
        assert main([*words, "--costs", "m5-max"]) == 0
        assert "[red]mine :smile:: 3 requests" in capsys.readouterr().out

    def test_a_line_that_is_not_a_sample_is_named(
        self, words: list[str], edits: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        edits.write_text('{"no": "sample"}\n')
        assert main(words) == 2
        assert "Line 1 of" in capsys.readouterr().err
        edits.write_text("")
        assert main(words) == 2
        assert "There is no request with an answer" in capsys.readouterr().err
