"""Keys during an answer, the history file, and completion."""

import os
import pty
import signal
import sys
import termios
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from akunu_py.cli.completion import SlashCompleter
from akunu_py.cli.history import open_history
from akunu_py.cli.keyboard import stopped_by_ctrl_c, unseen_keys


def test_ctrl_c_calls_and_the_third_one_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    with stopped_by_ctrl_c(lambda: pressed.append(1)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert pressed == [1, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_keys_are_not_echoed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    master, terminal = pty.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)

        def echoes() -> bool:
            return bool(termios.tcgetattr(stdin)[3] & termios.ECHO)

        assert echoes()
        with unseen_keys():
            assert not echoes()
            os.write(master, b"\x04")  # the next prompt will know it from a line's end
            assert os.read(terminal, 1) == b"\x04"
        assert echoes()
    os.close(master)


def typed_before(history: History) -> list[str]:
    return list(history.load_history_strings())


def test_history_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("akunu_py.cli.history.user_data_path", lambda *_, **__: tmp_path / "mine")
    history = open_history()
    history.store_string("a question\nin two lines")
    assert typed_before(open_history()) == ["a question\nin two lines"]
    assert isinstance(history, FileHistory)
    assert os.stat(history.filename).st_mode & 0o777 == 0o600
    os.chmod(history.filename, 0o644)
    open_history()
    assert os.stat(history.filename).st_mode & 0o777 == 0o600


def test_history_that_cannot_be_kept_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("akunu_py.cli.history.user_data_path", lambda *_, **__: tmp_path / "file")
    assert isinstance(open_history(), InMemoryHistory)
    monkeypatch.setattr("akunu_py.cli.history.user_data_path", lambda *_, **__: tmp_path / "mine")
    history = open_history()
    (tmp_path / "mine" / "chat_history").unlink()
    (tmp_path / "mine" / "chat_history").mkdir()
    history.store_string("a question")


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/re", ["/reset", "/retry"]),
        ("/speculative ", ["on", "off"]),
        ("/speculative o", ["on", "off"]),
        ("/drafter no", ["none"]),
        ("/processor sample 0.8 top", ["top-k", "top-p"]),
        ("/unknown x", []),
        ("re", []),
        ("a\n/re", []),
    ],
)
def test_completion(line: str, offered: list[str]) -> None:
    assert [
        it.text for it in SlashCompleter().get_completions(Document(line), CompleteEvent())
    ] == (offered)


def test_completion_of_files(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("")
    line = Document(f"/load {tmp_path}/ta")
    assert [it.text for it in SlashCompleter().get_completions(line, CompleteEvent())] == [
        "lk.json"
    ]
