"""`generate` on a tiny model, in process."""

import json
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.engine import Engine
from akunu_py.options import Options

STATS = {
    "target_calls",
    "target_tokens",
    "drafted",
    "accepted",
    "bonus",
    "corrected",
    "acceptance_rate",
    "tokens_per_call",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
    "ttft_s",
    "draft_s",
    "forward_s",
    "accepted_by_position",
}


@pytest.fixture
def model(tiny_model_dir: Path) -> tuple[str, str]:
    return "--model", str(tiny_model_dir)


def type_in(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(content)))


def test_json_is_one_object_and_the_only_output(
    model: tuple[str, str], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "-p", "def f(", "-m", "8", "--json", *model]) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    expected = engine.generate("def f(", Options(max_tokens=8))
    assert printed.out.count("\n") == 1
    assert answer["token_ids"] == expected.token_ids
    assert answer["text"] == expected.text
    assert answer["model"] == "tiny"
    assert answer["prompt_tokens"] == 6
    assert answer["generated_tokens"] == len(expected.token_ids)
    assert answer["finish_reason"] == expected.finish_reason
    assert set(answer["stats"]) >= STATS
    assert printed.err == ""


def test_the_text_is_the_engines(
    model: tuple[str, str], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "-p", "def f(", "-m", "8", "--verbose", *model]) == 0
    printed = capsys.readouterr()
    assert printed.out.rstrip("\n") == engine.generate("def f(", Options(max_tokens=8)).text
    speed, prompt = printed.err.splitlines()
    assert speed.startswith("8 tokens · ")
    assert prompt.startswith("prompt: 6 tokens, 0 cached · ")
    assert "peak memory" in prompt


def test_prompt_from_standard_input(
    model: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "déf f(\n".encode())
    assert main(["generate", "-p", "-", "-m", "4", "--json", *model]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == len("déf f(\n".encode())


def test_zero_tokens(model: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "x", "--max-tokens", "0", "--json", *model]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("", [], "length")
    assert main(["generate", "-p", "x", "--max-tokens", "0", *model]) == 0
    assert capsys.readouterr().out == ""


def test_chat_applies_the_chat_template(
    model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "--chat", "-p", "hello", "-m", "1", "--json", *model]
    assert main(words) == 0
    plain = json.loads(capsys.readouterr().out)["prompt_tokens"]
    assert main([*words, "--system-prompt", "be brief"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] > plain > len("hello")


def test_an_answer_goes_on_from_its_beginning(
    model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    for beginning in ([], ["--prefill-response", "well, "]):
        words = ["generate", "--chat", "-p", "hello", *beginning, "-m", "1", "--json", *model]
        assert main(words) == 0
        asked.append(json.loads(capsys.readouterr().out)["prompt_tokens"])
    assert asked[1] == asked[0] + len("well, ")


def test_a_prompt_is_kept_in_a_file(
    model: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "prompt")
    cached = []
    for _ in range(2):
        words = ["generate", "-p", "def f(" * 9, "-m", "2", "--json", "--prompt-cache-file", file]
        assert main([*words, *model]) == 0
        cached.append(json.loads(capsys.readouterr().out)["stats"]["cached_tokens"])
    assert cached[0] == 0 < cached[1]


def test_a_suffix_fills_a_gap(model: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-p", "ab", "--suffix", "cd", "-m", "2", "--json", *model]) == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == len("ab" + "cd") + 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-p", ""], "The prompt is empty"),
        (
            ["-p", "a" * 2000],
            "The prompt has 2000 tokens and exceeds the available context size of",
        ),
        (["-p", "x", "--max-context", "99999999"], "The context must be from 1 to"),
        (["-p", "too long for it", "--max-context", "4"], "raise --max-context"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_one_sentence(
    model: tuple[str, str], words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *words, *model]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1
