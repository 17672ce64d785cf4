"""What a chat on a terminal says first: requests to try, or the user's own model in one line."""

import io
import sys
from collections.abc import Callable

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput

from akunu_py.__main__ import main
from akunu_py.cli import terminal
from akunu_py.cli.chat import Chat
from akunu_py.cli.conversation import Conversation
from akunu_py.cli.parser import parse
from akunu_py.cli.terminal import EXAMPLES, TerminalScreen, describe_model
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.worker import EngineWorker
from tests.cli.fakes import FakeEngine
from tests.planning.curves import FLAT, LINEAR

Start = Callable[[FakeEngine], EngineWorker]


def talk(worker: EngineWorker, *words: str) -> list[str]:
    """What was said in a chat that was started with these options."""
    screen = TerminalScreen(worker.loading, parse(["chat", *words]).settings, InMemoryHistory())
    conversation = Conversation(worker, Options(), progress=screen.progress)
    Chat(conversation, screen).run()
    return [message["content"] for message in conversation.messages]


def test_tab_takes_one_example_after_the_other(
    start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.send_text("\t\r\t\t\r/te\t\x03\x04")
    said = talk(start(FakeEngine()))
    assert said == [EXAMPLES[0], "OK", EXAMPLES[2], "OK"]
    shown = capsys.readouterr().out
    assert shown.startswith("ember is a small model")
    assert all(f"  {example}\n" in shown for example in EXAMPLES)
    assert max(map(len, shown.splitlines()[:5])) < 80


def test_a_narrow_terminal_breaks_examples_between_words(
    start: Start,
    keys: PipeInput,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "columns_of", lambda _: 46)
    keys.send_text("\x04")
    talk(start(FakeEngine()))
    assert "  Rename `x` to `total` in: def f(x): return x\n  + 1\n" in capsys.readouterr().out


def test_without_a_greeting_tab_takes_nothing(
    start: Start,
    keys: PipeInput,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "describe_model", lambda *_: "a line about the model")
    for words in (["--quiet"], ["--quiet", "--model", "a/b"]):
        keys.send_text("\t\rHello?\r\x04")
        assert talk(start(FakeEngine("Hi.")), *words) == ["Hello?", "Hi."]
        shown = capsys.readouterr().out
        assert "ember" not in shown
        assert "a line about" not in shown


@pytest.mark.parametrize("words", [["--model", "a/b"], ["--adapter-path", "lora"]])
def test_the_line_about_the_model_is_shown_once_and_before_the_answer(
    start: Start,
    keys: PipeInput,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(terminal, "describe_model", lambda *_: "a line about the model")
    keys.send_text("Hello?\rAgain?\r\x04")
    talk(start(FakeEngine("Hi.", "Bye.")), *words)
    shown = capsys.readouterr().out
    assert shown.count("a line about the model") == 1
    assert shown.index("a line about the model") < shown.index("Hi.")


def test_a_pipe_is_not_greeted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/quit\n")))
    assert main(["chat"]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


@pytest.mark.parametrize(
    ("options", "curve", "drafting"),
    [
        (Options(), FLAT, "drafting pays from "),
        (Options(), LINEAR, "drafting does not pay here"),
        (Options(drafter="none"), None, "drafting is off"),
        (Options(num_draft_tokens=4), None, "up to 4 draft tokens per round"),
    ],
)
def test_the_line_has_name_size_context_and_drafting(
    shared_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    options: Options,
    curve: CostCurve | None,
    drafting: str,
) -> None:
    monkeypatch.setattr(shared_engine.speculation, "cost_curve", curve)
    line = describe_model(shared_engine, options)
    assert line.startswith("tiny · 337K parameters, 1 MiB · context 1,024 tokens · ")
    assert drafting in line
    assert "\n" not in line
