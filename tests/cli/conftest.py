"""What the command line's tests share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from akunu_py.worker import EngineWorker
from tests.cli.fakes import FakeEngine, fake_worker


@pytest.fixture
def start() -> Iterator[Callable[[FakeEngine], EngineWorker]]:
    """Starts workers, and closes them at the end."""
    with ExitStack() as stack:

        def start(engine: FakeEngine) -> EngineWorker:
            worker = fake_worker(engine)
            stack.callback(worker.close)
            return worker

        yield start


@pytest.fixture
def keys() -> Iterator[PipeInput]:
    """What is typed."""
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
