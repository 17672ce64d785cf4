"""`bench seeds` as its user runs it, with a training of two steps."""

import json
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.bench.seeds import char_model
from akunu_py.bench.seeds.cases import QUICK, Size
from akunu_py.cli.parser import parse
from akunu_py.cli.seeds_settings import STEPS, SeedsSettings
from akunu_py.errors import InvalidRequestError

TINY = ["--quick", "--steps", "2", "--requests", "1", "--max-tokens", "2"]


@pytest.fixture
def poem(tmp_path: Path) -> str:
    path = tmp_path / "poem.txt"
    path.write_text("The quick brown fox jumps over the lazy dog.\n" * 300)
    return str(path)


def settings(*words: str) -> SeedsSettings:
    parsed = parse(["bench", "seeds", *words]).settings
    assert isinstance(parsed, SeedsSettings)
    return parsed


def test_tables_then_json_and_a_plot_without_training_again(
    poem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["bench", "seeds", "--text", poem, *TINY]) == 0
    out = capsys.readouterr().out
    assert "poem.txt, 13,500 characters" in out
    assert "after 2 steps" in out
    assert out.count("| K=6 | trigram |") == 2

    monkeypatch.setattr(char_model, "train", None)
    plot = tmp_path / "seeds.png"
    assert main(["bench", "seeds", "--text", poem, *TINY, "--json", "--plot", str(plot)]) == 0
    (target,) = json.loads(capsys.readouterr().out)["targets"]
    assert target["steps"] == 2
    assert {row["draft"] for row in target["rows"]} == {"bigram", "trigram"}
    assert plot.stat().st_size > 1000


def test_a_text_that_is_missing_or_too_short_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "seeds", "--text", str(tmp_path / "none.txt")]) != 0
    assert "none.txt cannot be read: No such file" in capsys.readouterr().err
    short = tmp_path / "short.txt"
    short.write_text("Too short.")
    assert main(["bench", "seeds", "--text", str(short)]) != 0
    assert "has 10 characters, and a model needs at least 10,000" in capsys.readouterr().err


def test_options() -> None:
    assert settings() == SeedsSettings(None, STEPS, Size())
    assert settings("--quick") == SeedsSettings(None, STEPS[:1], QUICK)
    own = settings("--quick", "--seeds", "2", "--steps", "5", "5", "7", "--text", "a")
    assert own.text == Path("a")
    assert own.steps == (5, 7)
    assert own.size == Size(2, QUICK.requests, QUICK.max_tokens)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--steps 0", "--steps must be 1 or more"),
        ("--seeds 0", "seeds must be 1 or more"),
        ("--max-tokens 53", "may have 52 tokens"),
        ("--text", "expected one argument"),
    ],
)
def test_refusals(words: str, sentence: str) -> None:
    with pytest.raises(InvalidRequestError, match=sentence):
        settings(*words.split())
