"""`generate` on a tiny model, in process."""

import json
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from re import fullmatch
from typing import Any

import pytest

from akunu_py.__main__ import main
from akunu_py.engine import Engine
from akunu_py.options import Options
from tests.qwen import POOL, add_modules, write_qwen

Answer = Callable[..., dict[str, Any]]
STATS = {
    "target_forwards", "target_tokens", "drafted", "accepted", "bonus", "corrected",
    "acceptance_rate", "tokens_per_forward", "prefill_s", "decode_s", "tokens_per_s", "ttft_s",
    "draft_s", "forward_s", "accepted_by_position",
}  # fmt: skip


@pytest.fixture
def model(tiny_model_dir: Path) -> tuple[str, str]:
    return "--model", str(tiny_model_dir)


@pytest.fixture
def answer(model: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Runs the command with `--json`, which prints one line and nothing else."""

    def run(*words: str) -> dict[str, Any]:
        assert main(["generate", *words, "--json", *model]) == 0
        printed = capsys.readouterr()
        assert (printed.out.count("\n"), printed.err) == (1, "")
        found: dict[str, Any] = json.loads(printed.out)
        return found

    return run


def test_json_is_one_object(answer: Answer, engine: Engine) -> None:
    found = answer("-p", "def f(", "-m", "8")
    expected = engine.generate("def f(", Options(max_tokens=8))
    assert found["token_ids"] == expected.token_ids
    assert found["text"] == expected.text
    assert found["model"] == "tiny"
    assert found["prompt_tokens"] == 6
    assert found["generated_tokens"] == len(expected.token_ids)
    assert found["finish_reason"] == expected.finish_reason
    assert set(found["stats"]) >= STATS


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


def test_verbose_tells_what_drafted(
    model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--draft-model", model[1], "--drafter", "model", "--num-draft-tokens", "4"]
    assert main(["generate", "-p", "def f(", "-m", "8", "--verbose", *words, *model]) == 0
    _, drafts, _ = capsys.readouterr().err.splitlines()
    assert fullmatch(r"accepted drafts by origin: draft model: \d of \d", drafts)


def test_prompt_from_standard_input(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = "déf f(\n".encode()
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(typed)))
    assert answer("-p", "-", "-m", "4")["prompt_tokens"] == len(typed)


def test_zero_tokens(
    answer: Answer,
    model: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer("-p", "x", "--max-tokens", "0")
    assert (found["text"], found["token_ids"], found["finish_reason"]) == ("", [], "length")
    assert main(["generate", "-p", "x", "--max-tokens", "0", *model]) == 0
    assert capsys.readouterr().out == ""


def test_chat_applies_the_chat_template(answer: Answer) -> None:
    words = ("--chat", "-p", "hello", "-m", "1")
    plain, with_system, begun = (
        answer(*words, *more)["prompt_tokens"]
        for more in ((), ("--system-prompt", "be brief"), ("--prefill-response", "well, "))
    )
    assert with_system > plain > len("hello")
    assert begun == plain + len("well, ")


def test_a_prompt_is_kept_in_a_file(answer: Answer, tmp_path: Path) -> None:
    words = ("-p", "def f(" * 9, "-m", "2", "--prompt-cache-file", str(tmp_path / "prompt"))
    first, again = (answer(*words)["stats"]["cached_tokens"] for _ in range(2))
    assert first == 0 < again


def test_a_suffix_fills_a_gap(answer: Answer) -> None:
    found = answer("-p", "ab", "--suffix", "cd", "-m", "2")
    assert found["prompt_tokens"] == len("ab" + "cd") + 3


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


def test_json_that_was_cut_says_so(
    model: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "integer"}, "minItems": 50}')
    words = ("generate", "-p", "A list:", "--schema", str(schema), *model)
    assert main([*words, "-m", "5"]) == 4
    assert (
        "The JSON is not complete: stopped at the token limit; allow more"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", [["chat"], ["generate", "-p", "a"], ["edit", "a.py", "a"]])
def test_a_model_for_embeddings_is_refused(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = add_modules(write_qwen(tmp_path / "vectors"), POOL)
    (tmp_path / "a.py").write_text("a = 1\n")
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--model", str(folder), *(["--yes"] if "edit" in command else [])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("akunu-py: vectors is for embedding, not for completion: choose another")
    assert said.count("\n") == 1
