"""A conversation from a pipe and on a terminal, with a scripted engine."""

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import PipeInput

from akunu_py.__main__ import main
from akunu_py.cli.chat import Chat
from akunu_py.cli.conversation import Conversation
from akunu_py.cli.screen import Screen
from akunu_py.cli.settings import ChatSettings
from akunu_py.cli.terminal import TerminalScreen
from akunu_py.errors import ContextOverflowError, InvalidRequestError, ModelLoadError
from akunu_py.options import Options
from akunu_py.worker import EngineWorker
from tests.cli.fakes import ENDLESS, SILENT, FakeEngine

Start = Callable[[FakeEngine], EngineWorker]
PASTE_BEGINS, PASTE_ENDS = "\x1b[200~", "\x1b[201~"


def talk_on_terminal(worker: EngineWorker, *typed_before: str) -> Conversation:
    history = InMemoryHistory(typed_before)
    screen = TerminalScreen(worker.loading, ChatSettings(quiet=True), history)
    conversation = Conversation(worker, Options(), progress=screen.progress)
    Chat(conversation, screen).run()
    return conversation


def talk_through_pipe(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> Conversation:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said)))
    screen = Screen(worker.loading)
    conversation = Conversation(worker, Options(), progress=screen.progress)
    Chat(conversation, screen).run()
    return conversation


def said_in(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages]


class TestPipe:
    def test_one_turn_per_line(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        worker = start(FakeEngine("Hi.\n", "Bye."))
        conversation = talk_through_pipe(worker, monkeypatch, b"Hello?\r\n\n  \nDone?")
        assert said_in(conversation) == ["Hello?", "Hi.\n", "Done?", "Bye."]
        printed = capsys.readouterr()
        assert printed.out == "Hi.\nBye.\n"
        assert printed.err == "It is only a fake.\n"

    def test_a_backslash_continues_the_turn(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = b"\\\n\nEdit:\\\ndef f():\\\n\\\r\n    pass\nThanks\\"
        conversation = talk_through_pipe(start(FakeEngine()), monkeypatch, said)
        assert said_in(conversation)[::2] == ["Edit:\ndef f():\n\n    pass", "Thanks\\"]

    def test_commands_reply_on_standard_error(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        engine = FakeEngine()
        talk_through_pipe(start(engine), monkeypatch, b"/max-tokens 3\nHello?\n/quit\nnever said\n")
        assert engine.options[0].max_tokens == 3
        printed = capsys.readouterr()
        assert printed.out == "OK\n"
        assert "up to 3 tokens" in printed.err

    @pytest.mark.parametrize(
        ("said", "sentence"),
        [
            (b"/unknown", "no command /unknown"),
            (b"Hello?\ncaf\xe9", "Line 2 of standard input is not valid UTF-8"),
        ],
    )
    def test_an_input_that_cannot_be_served_ends_it(
        self, start: Start, monkeypatch: pytest.MonkeyPatch, said: bytes, sentence: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=sentence):
            talk_through_pipe(start(FakeEngine()), monkeypatch, said)

    def test_a_full_context_ends_it_and_names_a_remedy(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(ContextOverflowError, match="/reset starts again"):
            talk_through_pipe(start(FakeEngine(context=9)), monkeypatch, b"a long question")

    def test_it_ends_with_the_models_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Hello?")))
        assert main(["chat", "--model", str(tmp_path)]) == 2
        assert "is not a model" in capsys.readouterr().err
        assert main(["chat", "--adapter-path", str(tmp_path / "a")]) == 2
        assert "There is no adapter folder" in capsys.readouterr().err


class TestTerminal:
    def test_a_conversation(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys.send_text("Hello?\rDone?\r\x04")
        conversation = talk_on_terminal(start(FakeEngine("Hi.", "Bye.")))
        assert said_in(conversation) == ["Hello?", "Hi.", "Done?", "Bye."]
        shown = capsys.readouterr().out
        assert "It is only a fake." in shown
        assert "Hi.\n3 tokens · 1.50 tokens per pass · 100% of drafts accepted" in shown

    @pytest.mark.parametrize(
        "typed", ["one\\\rtwo\r", "one\x1b\rtwo\r", f"{PASTE_BEGINS}one\ntwo\n{PASTE_ENDS}\r"]
    )
    def test_several_lines(self, start: Start, keys: PipeInput, typed: str) -> None:
        keys.send_text(f"{typed}\x04")
        assert said_in(talk_on_terminal(start(FakeEngine())))[0] == "one\ntwo"

    def test_empty_lines_are_ignored(self, start: Start, keys: PipeInput) -> None:
        keys.send_text("\r  \r\x03Hello?\x03\x03/quit\r")
        assert said_in(talk_on_terminal(start(FakeEngine()))) == []

    def test_the_search_of_the_history_keeps_its_keys(self, start: Start, keys: PipeInput) -> None:
        keys.send_text("\x12rename\r\r\x04")  # Ctrl-R
        assert said_in(talk_on_terminal(start(FakeEngine()), "rename x to y"))[0] == "rename x to y"

    def test_commands_and_mistakes_keep_the_session(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys.send_text("/rest\r/max-tokens 5\rHello?\r/quit\r")
        conversation = talk_on_terminal(start(FakeEngine()))
        assert said_in(conversation) == ["Hello?", "OK"]
        shown = capsys.readouterr().out
        assert "did you mean /reset?" in shown
        assert "up to 5 tokens" in shown

    def test_a_file_of_no_user_and_a_damaged_one_keep_the_session(
        self, start: Start, keys: PipeInput, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        saved = tmp_path / "saved.json"
        keys.send_text(f"/save {saved}\r\x04")
        talk_on_terminal(start(FakeEngine()))
        damaged = saved.read_text().replace('"temperature": 0.0', f'"temperature": {10**400}')
        saved.write_text(damaged)
        keys.send_text(
            f"Hello?\r/save ~nosuchuser/x\r/load ~nosuchuser/x\r/load {saved}\rAgain?\r\x04"
        )
        conversation = talk_on_terminal(start(FakeEngine()))
        assert said_in(conversation) == ["Hello?", "OK", "Again?", "OK"]
        shown = capsys.readouterr().out
        assert "could not be saved to ~nosuchuser/x: No such file or directory." in shown
        assert "~nosuchuser/x cannot be read: No such file or directory." in shown
        assert "holds no saved conversation" in shown

    @pytest.mark.parametrize("presses", [1, 2])
    def test_ctrl_c_stops_the_answer_and_keeps_it(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str], presses: int
    ) -> None:
        keys.send_text("Go on.\rAnd?\r\x04")
        conversation = talk_on_terminal(start(FakeEngine(ENDLESS, interrupts=presses)))
        assert said_in(conversation) == ["Go on.", ENDLESS, "And?", "OK"]
        assert "interrupted" in capsys.readouterr().out

    def test_ctrl_c_before_the_first_token(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys.send_text("Go on.\r\x04")
        assert said_in(talk_on_terminal(start(FakeEngine(SILENT, interrupts=1)))) == []
        assert "the question is not kept" in capsys.readouterr().out

    def test_a_full_context_is_reported_and_reset_helps(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys.send_text("Hello?\rA rather long question?\r/reset\rShort?\r\x04")
        conversation = talk_on_terminal(start(FakeEngine(context=40)))
        assert said_in(conversation) == ["Short?", "OK"]
        assert "The prompt does not fit. /reset starts again." in capsys.readouterr().out

    def test_an_answer_cannot_control_the_terminal(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        keys.send_text("Hello?\r\x04")
        talk_on_terminal(start(FakeEngine("\x1b]0;owned\x07")))
        assert "␛]0;owned␇" in capsys.readouterr().out

    def test_a_model_that_does_not_load_ends_the_prompt(self, keys: PipeInput) -> None:
        def load() -> None:
            raise ModelLoadError("It does not load.")

        worker = EngineWorker(load)  # type: ignore[arg-type]
        with pytest.raises(ModelLoadError):
            talk_on_terminal(worker)
        worker.close()

    def test_a_failing_device_keeps_the_session(
        self, start: Start, keys: PipeInput, capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        engine = FakeEngine()

        def fail(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("out of memory")

        monkeypatch.setattr(engine.tokenizer, "render_chat", fail)
        keys.send_text("Hello?\rAgain?\r\x04")
        conversation = talk_on_terminal(start(engine))
        assert said_in(conversation) == ["Again?", "OK"]
        assert "MLX failed (out of memory)" in capsys.readouterr().out
