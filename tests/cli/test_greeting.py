"""The greeting: requests to try, and the user's own model in one line."""

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
from akunu_py.cli.greeting import (
    CLOSING,
    EXAMPLES,
    NO_GREETING,
    OPENING,
    Greeting,
    describe_model,
    greeting_for,
)
from akunu_py.cli.parser import parse
from akunu_py.cli.terminal import TerminalScreen
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.worker import EngineWorker
from tests.cli.fakes import FakeEngine
from tests.planning.curves import FLAT, LINEAR

Start = Callable[[FakeEngine], EngineWorker]


def talk(worker: EngineWorker, greeting: Greeting) -> list[str]:
    """What was said in a chat with a greeting."""
    screen = TerminalScreen(worker.loading, "fake", InMemoryHistory(), greeting)
    conversation = Conversation(worker, Options(), progress=screen.progress)
    Chat(conversation, screen).run()
    return [message["content"] for message in conversation.messages]


def greeting_of(*words: str) -> Greeting:
    return greeting_for(parse(["chat", *words]).settings)


def test_the_bundled_model_offers_requests() -> None:
    greeting = greeting_of()
    assert greeting.examples == EXAMPLES
    assert greeting.describe is None
    assert max(map(len, (OPENING, *(f"  {one}" for one in EXAMPLES), CLOSING))) < 80
    assert greeting_of("--quiet") == greeting_of("--quiet", "--model", "a/b") == NO_GREETING


def test_another_model_is_described() -> None:
    for words in (["--model", "a/b"], ["--adapter-path", "lora"]):
        greeting = greeting_of(*words)
        assert greeting.describe is not None
        assert greeting.examples == ()


def test_tab_takes_one_example_after_the_other(
    start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.send_text("\t\r\t\t\r/te\t\x03\x04")
    said = talk(start(FakeEngine()), greeting_of())
    assert said == [EXAMPLES[0], "OK", EXAMPLES[2], "OK"]
    shown = capsys.readouterr().out
    assert shown.startswith("ember is a small model")
    assert all(f"  {example}\n" in shown for example in EXAMPLES)


def test_a_narrow_terminal_breaks_examples_between_words(
    start: Start,
    keys: PipeInput,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terminal, "columns_of", lambda _: 46)
    keys.send_text("\x04")
    talk(start(FakeEngine()), greeting_of())
    assert "  Rename `x` to `total` in: def f(x): return x\n  + 1\n" in capsys.readouterr().out


def test_without_a_greeting_tab_takes_nothing(
    start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.send_text("\t\rHello?\r\x04")
    assert talk(start(FakeEngine("Hi.")), NO_GREETING) == ["Hello?", "Hi."]
    assert "ember" not in capsys.readouterr().out


def test_the_line_about_the_model_is_shown_once_and_before_the_answer(
    start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.send_text("Hello?\rAgain?\r\x04")
    greeting = Greeting(describe=lambda engine: f"a line about {engine.model.name}")
    talk(start(FakeEngine("Hi.", "Bye.")), greeting)
    shown = capsys.readouterr().out
    assert shown.count("a line about fake") == 1
    assert shown.index("a line about fake") < shown.index("Hi.")


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
    line = describe_model(options, shared_engine)
    assert line.startswith("tiny · 337K parameters, 1 MiB · context 1,024 tokens · ")
    assert drafting in line
    assert "\n" not in line
