"""A walk through `chat` on a pseudo-terminal, as a user takes it."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_PATIENCE_S = 60
_WHERE_IS_THE_CURSOR = b"\x1b[6n"


class Walk:
    """A program on a pseudo-terminal.

    Args:
        words: what follows the program's name.
    """

    def __init__(self, *words: str) -> None:
        self._here, there = pty.openpty()
        self._shown = b""
        self.program = subprocess.Popen(
            [sys.executable, "-m", "akunu_py", *words],
            stdin=there, stdout=there, stderr=there, start_new_session=True,
        )  # fmt: skip
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
    walk.wait_for("took so far")  # the menu
    walk.type("ts\r")
    assert "1 answer: " in walk.wait_for("tokens in use")
    walk.type("/nonsense\r")
    walk.wait_for("There is no command /nonsense")
    walk.type("more\r")
    walk.wait_for("tokens/s")
    walk.type("\x04")
    assert walk.program.wait(_PATIENCE_S) == 0


def test_a_model_that_does_not_load(tmp_path: Path) -> None:
    walk = Walk("chat", "--model", str(tmp_path))
    walk.type("is anybody there?")
    walk.wait_for("akunu-py: ")
    walk.wait_for("is not a model")
    assert walk.program.wait(_PATIENCE_S) == 2
    walk.close()
