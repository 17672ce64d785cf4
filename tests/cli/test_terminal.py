"""The terminal: keys during an answer, history, completion, and a whole session."""

import os
import pty
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from akunu_py.cli.terminal import (
    EXAMPLES,
    SlashCompleter,
    open_history,
    stopped_by_ctrl_c,
    unseen_keys,
)
from tests.processes import PROGRAM, start

_PATIENCE_S = 60
_WHERE_IS_THE_CURSOR = b"\x1b[6n"


def test_ctrl_c_stops_and_the_third_press_raises() -> None:
    before = signal.getsignal(signal.SIGINT)
    pressed: list[int] = []
    with stopped_by_ctrl_c(lambda: pressed.append(1)):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert pressed == [1, 1]
    assert signal.getsignal(signal.SIGINT) is before


def test_keys_are_not_echoed_during_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("akunu_py.cli.terminal.user_data_path", lambda *_, **__: tmp_path / "mine")
    history = open_history()
    history.store_string("a question\nin two lines")
    assert typed_before(open_history()) == ["a question\nin two lines"]
    assert isinstance(history, FileHistory)
    assert os.stat(history.filename).st_mode & 0o777 == 0o600
    os.chmod(history.filename, 0o644)
    open_history()
    assert os.stat(history.filename).st_mode & 0o777 == 0o600


def test_without_a_history_file_the_chat_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("akunu_py.cli.terminal.user_data_path", lambda *_, **__: tmp_path / "file")
    assert isinstance(open_history(), InMemoryHistory)
    monkeypatch.setattr("akunu_py.cli.terminal.user_data_path", lambda *_, **__: tmp_path / "mine")
    history = open_history()
    (tmp_path / "mine" / "chat_history").unlink()
    (tmp_path / "mine" / "chat_history").mkdir()
    history.store_string("a question")


def completions(line: str) -> list[str]:
    found = SlashCompleter().get_completions(Document(line), CompleteEvent())
    return [completion.text for completion in found]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("/ret", ["/retry"]),
        ("/speculate ", ["on", "off"]),
        ("/speculate o", ["on", "off"]),
        ("/drafter no", ["none"]),
        ("/temp o", ["off"]),
        ("/unknown x", []),
        ("re", []),
        ("a\n/re", []),
    ],
)
def test_completion(line: str, offered: list[str]) -> None:
    assert completions(line) == offered


def test_completion_of_files(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("")
    assert completions(f"/load {tmp_path}/ta") == ["lk.json"]


class Walk:
    """A program on a pseudo-terminal.

    Args:
        words: what follows the program's name.
    """

    def __init__(self, *words: str) -> None:
        self._here, there = pty.openpty()
        self._shown = b""
        self.program = start(
            *PROGRAM, *words, stdin=there, stdout=there, stderr=there, start_new_session=True
        )
        os.close(there)

    def type(self, keys: str) -> None:
        os.write(self._here, keys.encode())

    def wait_for(self, text: str) -> str:
        """What was shown since the last wait, up to and including a text."""
        wanted, deadline = text.encode(), time.monotonic() + _PATIENCE_S
        while wanted not in self._shown:
            assert select.select([self._here], [], [], deadline - time.monotonic())[0], self._shown
            fresh = os.read(self._here, 65536)
            if _WHERE_IS_THE_CURSOR in fresh:
                self.type("\x1b[1;1R")
            self._shown += fresh
        shown, _, self._shown = self._shown.partition(wanted)
        return (shown + wanted).decode(errors="replace")

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._here)


@pytest.fixture
def walk(tiny_model_dir: Path) -> Iterator[Walk]:
    walk = Walk("chat", "--model", str(tiny_model_dir), "-m", "8", "--show-drafts")
    yield walk
    walk.close()


def test_a_session(walk: Walk) -> None:
    walk.wait_for("loading")
    walk.type("hello\r")
    walk.wait_for("tokens/s")
    walk.type("/sta")
    walk.wait_for("time so far")  # the menu
    walk.type("ts\r")
    assert "1 answer: " in walk.wait_for("tokens in use")
    walk.type("/nonsense\r")
    walk.wait_for("There is no command /nonsense")
    walk.type("more\r")
    walk.wait_for("tokens/s")
    walk.type("\x04")
    assert walk.program.wait(_PATIENCE_S) == 0


def test_a_dumb_terminal_shows_the_whole_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    walk = Walk("chat")
    walk.wait_for("lists commands.")
    walk.wait_for("\n> ")
    walk.type("\t")
    walk.wait_for(EXAMPLES[0])
    walk.type("\r")
    walk.wait_for("def f(total)")
    walk.wait_for("\n> ")
    walk.type(" Quit()\r")  # no question, by itself
    assert walk.program.wait(_PATIENCE_S) == 0
    walk.close()


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    walk = Walk("chat", "--model", str(tmp_path))
    walk.type("is anybody there?")
    walk.wait_for("akunu-py: ")
    walk.wait_for("is not a model")
    assert walk.program.wait(_PATIENCE_S) == 2
    walk.close()
