"""`bench replay` as its user runs it: a file in, predictions out, and no model loaded."""

import json
from pathlib import Path

import pytest

from akunu_py import engine
from akunu_py.__main__ import main
from akunu_py.cli.bench_settings import BenchSettings, ReplaySettings
from akunu_py.cli.parser import parse
from akunu_py.errors import InvalidRequestError

CODE = "def area(width, height):\n    return width * height\n"


@pytest.fixture
def edits(tmp_path: Path) -> Path:
    path = tmp_path / "edits.jsonl"
    line = {"instruction": "Rename.", "input": CODE, "output": CODE.replace("width", "w")}
    path.write_text(f"{json.dumps(line)}\n" * 3)
    return path


@pytest.fixture
def words(edits: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(engine, "load", None)
    return ["bench", "replay", str(edits), "--model", str(tiny_model_dir)]


def test_a_table_for_every_set_and_curve(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--costs", "m4-pro", "m3-ultra"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("edits: 3 requests")
    assert out.count("auto + planner") == out.count("ngram + planner") == 2
    assert "Nothing here was measured" in out
    assert "mlx/issues/3852" in out


def test_json_and_a_plot(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "replay.svg"
    more = ["--costs", "m5-max", "--drafter", "auto", "--num-draft-tokens", "auto", "4", "--json"]
    assert main([*words, *more, "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "prediction" in found["note"]
    assert found["sets"]["edits"]["requests"] == 3
    planned, fixed = found["rows"]
    assert (planned["num_draft_tokens"], fixed["num_draft_tokens"]) == (None, 4)
    for row in found["rows"]:
        assert row["predicted_speedup"] > 1.2
        assert row["drafted"] >= row["accepted"] > 0
        assert row["emitted"] == found["sets"]["edits"]["reference_tokens"]
    assert plot.read_text().startswith("<?xml")


def test_fewer_requests_can_be_taken(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--costs", "m5-max", "--max-requests", "1"]) == 0
    assert "edits: 1 requests" in capsys.readouterr().out


def test_what_is_no_sample_is_told_by_its_line(
    words: list[str], edits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits.write_text('{"no": "sample"}\n')
    assert main(words) == 2
    assert "Line 1 of" in capsys.readouterr().err
    edits.write_text("")
    assert main(words) == 2
    assert "There is no request with an answer" in capsys.readouterr().err


class TestWords:
    def test_defaults(self) -> None:
        settings = parse(["bench", "replay", "a.jsonl"]).settings
        assert isinstance(settings, BenchSettings)
        assert settings.settings == ReplaySettings((Path("a.jsonl"),))

    def test_all_drafters_are_those_that_draft(self) -> None:
        settings = parse(["bench", "replay", "a.jsonl", "--drafter", "all"]).settings
        assert isinstance(settings, BenchSettings)
        assert isinstance(settings.settings, ReplaySettings)
        assert {"auto", "vllm-ngram"} < set(settings.settings.drafters)
        assert "none" not in settings.settings.drafters

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("bench replay", "required: FILE"),
            ("bench replay a --drafter nobody", "invalid choice: 'nobody'"),
            ("bench replay a --num-draft-tokens many", "'many' is not a whole number"),
            ("bench replay a --num-draft-tokens 100000", "is not from 0 to"),
            ("bench replay a --max-requests 0", "1 or more"),
        ],
    )
    def test_refusals(self, words: str, sentence: str) -> None:
        with pytest.raises(InvalidRequestError) as refusal:
            parse(words.split())
        assert sentence in str(refusal.value)
