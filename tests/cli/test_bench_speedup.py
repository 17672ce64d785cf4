"""`bench speedup` as its user runs it, on the tiny model whose costs are given."""

import json
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.cli.bench_settings import BenchSettings, SpeedupSettings
from akunu_py.cli.parser import parse
from akunu_py.errors import InvalidRequestError


@pytest.fixture
def words(tiny_model_dir: Path, tmp_path: Path) -> list[str]:
    data = tmp_path / "mine.jsonl"
    data.write_text(json.dumps({"prompt": "ab ab ab ab ", "reference": "ab ab ab ab ab "}) + "\n")
    return [
        "bench", "speedup", "--model", str(tiny_model_dir), "--data", str(data), "--workloads",
        "--quick", "--max-tokens", "8", "--drafter", "auto", "--num-draft-tokens", "auto", "4",
    ]  # fmt: skip


def test_tables_for_own_and_forced_answers(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "mine: the model's own answers" in out
    assert "mine: forced answers: the reference's tokens are taken" in out
    assert out.count("auto + planner") >= 2
    assert "apart in the median" in out


def test_json_and_a_plot(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "speedup.svg"
    assert main([*words, "--answers", "forced", "--json", "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["mlx"]
    names = [row["contestant"] for row in found["rows"]]
    assert names == ["mlx-lm", "plain", "auto + planner", "auto, num_draft_tokens=4"]
    for row in found["rows"]:
        assert (row["workload"], row["answers"]) == ("mine", "forced")
        assert row["speedup"]["median"] > 0
    assert found["rows"][2]["shares"].keys() == {"drafting", "forward", "detokenizing", "rest"}
    assert plot.read_text().startswith("<?xml")


class TestWords:
    def test_defaults(self) -> None:
        settings = parse(["bench", "speedup"]).settings
        assert isinstance(settings, BenchSettings)
        own = settings.settings
        assert isinstance(own, SpeedupSettings)
        assert own.drafters == ("auto", "ngram")
        assert own.drafts == (None, 4, 8, 16)
        assert own.answers == ("own", "forced")
        assert (own.prompts, own.rounds, own.max_tokens) == (4, 3, 192)

    def test_quick_is_smaller_but_for_what_is_named(self) -> None:
        settings = parse(["bench", "speedup", "--quick", "--prompts", "3"]).settings
        assert isinstance(settings, BenchSettings)
        own = settings.settings
        assert isinstance(own, SpeedupSettings)
        assert (own.prompts, own.rounds, own.max_tokens) == (3, 1, 64)

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("bench speedup --workloads dance", "invalid choice: 'dance'"),
            ("bench speedup --workloads", "name --workloads or --data"),
            ("bench speedup --rounds 0", "--rounds must be 1 or more"),
            ("bench speedup --max-tokens 1", "--max-tokens must be 2 or more"),
            ("bench speedup --seconds 0", "above 0"),
        ],
    )
    def test_refusals(self, words: str, sentence: str) -> None:
        with pytest.raises(InvalidRequestError) as refusal:
            parse(words.split())
        assert sentence in str(refusal.value)
