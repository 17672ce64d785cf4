"""A conversation from a pipe and on a terminal, with a scripted engine.

A chat on a terminal first offers requests to try, or describes the user's own model in one line.
"""

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput

from akunu_py.__main__ import main
from akunu_py.cli import terminal
from akunu_py.cli.chat import Chat
from akunu_py.cli.conversation import Conversation
from akunu_py.cli.parser import parse
from akunu_py.cli.screen import Screen
from akunu_py.cli.terminal import EXAMPLES, TerminalScreen, describe_model
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.options import Options
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.worker import EngineWorker
from tests.cli.fakes import ENDLESS, SILENT, FakeEngine
from tests.planning.curves import FLAT, LINEAR

Start = Callable[[FakeEngine], EngineWorker]
Talk = Callable[..., list[str]]
PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"


def said_in(worker: EngineWorker, screen: Screen) -> list[str]:
    """What is said in a chat on a screen."""
    conversation = Conversation(worker, Options(), progress=screen.progress)
    Chat(conversation, screen, doubts=True).run()
    return [message["content"] for message in conversation.messages]


class TestPipe:
    @pytest.fixture
    def talk(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> Talk:
        """What is said in a chat with an engine that reads these bytes."""

        def talk(engine: FakeEngine, read: bytes) -> list[str]:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(read)))
            worker = start(engine)
            return said_in(worker, Screen(worker.loading))

        return talk

    def test_one_turn_per_line(self, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
        said = talk(FakeEngine("Hi.\n", "Bye."), b"Hello?\r\n\n  \nDone?")
        assert said == ["Hello?", "Hi.\n", "Done?", "Bye."]
        assert capsys.readouterr() == ("Hi.\nBye.\n", "It is only a fake.\n")

    @pytest.mark.parametrize(
        ("code", "doubt"),
        [
            ("def f(x)", "not valid Python"),
            ("a = 1", "is unchanged"),
            ("a = 2", ""),
            ("  b = 1\n  c = 2", ""),
        ],
    )
    def test_what_is_wrong_with_an_answer_is_said(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], code: str, doubt: str
    ) -> None:
        talk(FakeEngine(f"```python\n{code}\n```\n"), b"Double the number in: a = 1\n")
        _, said = capsys.readouterr().err.split("\n", 1)
        assert doubt in said
        assert bool(said) == bool(doubt)

    def test_a_backslash_continues_the_turn(self, talk: Talk) -> None:
        said = talk(FakeEngine(), b"\\\n\nEdit:\\\ndef f():\\\n\\\r\n    pass\nThanks\\")
        assert said[::2] == ["Edit:\ndef f():\n\n    pass", "Thanks\\"]

    def test_commands_reply_on_standard_error(
        self, talk: Talk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine = FakeEngine()
        talk(engine, b"/max-tokens 3\nHello?\n/quit\nnever said\n")
        assert engine.options[0].max_tokens == 3
        printed = capsys.readouterr()
        assert printed.out == "OK\n"
        assert "up to 3 tokens" in printed.err

    @pytest.mark.parametrize(
        ("read", "error", "sentence"),
        [
            (b"/unknown", InvalidRequestError, "no command /unknown"),
            (b"Hi\ncaf\xe9", InvalidRequestError, "Line 2 of standard input is not valid UTF-8"),
            (b"a question that is long", ContextOverflowError, "/reset starts over"),
        ],
    )
    def test_an_input_that_cannot_be_served_ends_it(
        self, talk: Talk, read: bytes, error: type[Exception], sentence: str
    ) -> None:
        with pytest.raises(error, match=sentence):
            talk(FakeEngine(context=20), read)

    def test_it_ends_with_the_models_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello?")))
        assert main(["chat", "--model", str(tmp_path)]) == 2
        assert "is not a model" in capsys.readouterr().err
        assert main(["chat", "--adapter-path", str(tmp_path / "a")]) == 2
        assert "There is no adapter folder" in capsys.readouterr().err

    def test_it_is_not_greeted(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"/quit\n")))
        assert main(["chat"]) == 0
        assert capsys.readouterr() == ("", "")


@pytest.fixture
def talk(start: Start, keys: PipeInput) -> Talk:
    """What is said in a chat with an engine on a terminal where these keys are pressed."""

    def talk(engine: FakeEngine, typed: str, *words: str, earlier: Sequence[str] = ()) -> list[str]:
        keys.send_text(typed)
        worker, settings = start(engine), parse(["chat", *(words or ["--quiet"])]).settings
        screen = TerminalScreen(worker.loading, settings, InMemoryHistory(earlier))
        return said_in(worker, screen)

    return talk


class TestTerminal:
    def test_a_conversation(self, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
        said = talk(FakeEngine("Hi.", "Bye."), "Hello?\rDone?\r\x04")
        assert said == ["Hello?", "Hi.", "Done?", "Bye."]
        shown = capsys.readouterr().out
        assert "It is only a fake." in shown
        assert "Hi.\n3 tokens · 1.50 tokens per pass · 100% of drafts accepted" in shown

    @pytest.mark.parametrize(
        "typed", ["one\\\rtwo\r", "one\x1b\rtwo\r", f"{PASTE_BEGINS}one\ntwo\n{PASTE_ENDS}\r"]
    )
    def test_several_lines(self, talk: Talk, typed: str) -> None:
        assert talk(FakeEngine(), f"{typed}\x04")[0] == "one\ntwo"

    def test_empty_lines_are_ignored(self, talk: Talk) -> None:
        assert talk(FakeEngine(), "\r  \r\x03Hello?\x03\x03/quit\r") == []

    def test_the_search_of_the_history_keeps_its_keys(self, talk: Talk) -> None:
        ctrl_r = "\x12"
        said = talk(FakeEngine(), f"{ctrl_r}rename\r\r\x04", earlier=["rename x to y"])
        assert said[0] == "rename x to y"

    def test_commands_and_mistakes_keep_the_session(
        self, talk: Talk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = talk(FakeEngine(), "/rest\r/max-tokens 5\rHello?\r/quit\r")
        assert said == ["Hello?", "OK"]
        shown = capsys.readouterr().out
        assert "did you mean /reset?" in shown
        assert "up to 5 tokens" in shown

    def test_a_file_of_no_user_and_a_damaged_one_keep_the_session(
        self, talk: Talk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        saved = tmp_path / "saved.json"
        talk(FakeEngine(), f"/save {saved}\r\x04")
        damaged = saved.read_text().replace('"temperature": 0.0', f'"temperature": {10**400}')
        saved.write_text(damaged)
        lost = "/save ~nosuchuser/x\r/load ~nosuchuser/x\r"
        said = talk(FakeEngine(), f"Hello?\r{lost}/load {saved}\rAgain?\r\x04")
        assert said == ["Hello?", "OK", "Again?", "OK"]
        shown = capsys.readouterr().out
        assert "could not be saved to ~nosuchuser/x: No such file or directory." in shown
        assert "~nosuchuser/x cannot be read: No such file or directory." in shown
        assert "is not a saved conversation" in shown

    @pytest.mark.parametrize("presses", [1, 2])
    def test_ctrl_c_stops_the_answer_and_keeps_it(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], presses: int
    ) -> None:
        said = talk(FakeEngine(ENDLESS, interrupts=presses), "Go on.\rAnd?\r\x04")
        assert said == ["Go on.", ENDLESS, "And?", "OK"]
        assert "interrupted" in capsys.readouterr().out

    def test_ctrl_c_before_the_first_token(
        self, talk: Talk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert talk(FakeEngine(SILENT, interrupts=1), "Go on.\r\x04") == []
        assert "the question is not kept" in capsys.readouterr().out

    def test_a_full_context_is_reported_and_reset_helps(
        self, talk: Talk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        typed = "Hello?\rA rather long question?\r/reset\rShort?\r\x04"
        assert talk(FakeEngine(context=40), typed) == ["Short?", "OK"]
        assert "The prompt does not fit. /reset starts over." in capsys.readouterr().out

    def test_an_answer_cannot_control_the_terminal(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        talk(FakeEngine("\x1b]0;owned\x07"), "Hello?\r\x04")
        assert "␛]0;owned␇" in capsys.readouterr().out

    def test_a_failing_device_keeps_the_session(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = FakeEngine()

        def fail(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("out of memory")

        monkeypatch.setattr(engine.tokenizer, "render_chat", fail)
        assert talk(engine, "Hello?\rAgain?\r\x04") == ["Again?", "OK"]
        assert "MLX failed (out of memory)" in capsys.readouterr().out


class TestGreeting:
    @pytest.fixture
    def described(self, monkeypatch: pytest.MonkeyPatch) -> str:
        line = "a line about the model"
        monkeypatch.setattr(terminal, "describe_model", lambda *_: line)
        return line

    def test_tab_takes_one_example_after_the_other(
        self, talk: Talk, capsys: pytest.CaptureFixture[str]
    ) -> None:
        said = talk(FakeEngine(), "\t\r\t\t\r/te\t\x03\x04", "--model", "ember")
        assert said == [EXAMPLES[0], "OK", EXAMPLES[2], "OK"]
        shown = capsys.readouterr().out
        assert shown.startswith("ember is a small model")
        assert all(f"  {example}\n" in shown for example in EXAMPLES)
        assert max(map(len, shown.splitlines()[:5])) < 80

    def test_a_narrow_terminal_breaks_examples_between_words(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(terminal, "columns_of", lambda _: 46)
        talk(FakeEngine(), "\x04", "--model", "ember")
        shown = capsys.readouterr().out
        assert "  Rename `x` to `total` in: def f(x): return x\n  + 1\n" in shown

    @pytest.mark.parametrize("words", [["--quiet"], ["--quiet", "--model", "a/b"]])
    def test_without_a_greeting_tab_takes_nothing(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], described: str, words: list[str]
    ) -> None:
        assert talk(FakeEngine("Hi."), "\t\rHello?\r\x04", *words) == ["Hello?", "Hi."]
        assert "ember" not in (shown := capsys.readouterr().out)
        assert described not in shown

    @pytest.mark.parametrize("words", [["--model", "a/b"], ["--adapter-path", "lora"]])
    def test_the_line_about_the_model_is_shown_once_and_before_the_answer(
        self, talk: Talk, capsys: pytest.CaptureFixture[str], described: str, words: list[str]
    ) -> None:
        talk(FakeEngine("Hi.", "Bye."), "Hello?\rAgain?\r\x04", *words)
        shown = capsys.readouterr().out
        assert shown.count(described) == 1
        assert shown.index(described) < shown.index("Hi.")

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
        self,
        shared_engine: Engine,
        monkeypatch: pytest.MonkeyPatch,
        options: Options,
        curve: CostCurve | None,
        drafting: str,
    ) -> None:
        monkeypatch.setattr(shared_engine.costs, "measured", curve)
        line = describe_model(shared_engine, options)
        assert line.startswith("tiny · 337K parameters, 1 MiB · context 1,024 tokens · ")
        assert drafting in line
        assert "\n" not in line
