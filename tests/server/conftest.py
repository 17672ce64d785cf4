"""Live servers on tiny models, for whatever no client's own body is needed for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from tests.parrot import parrot_engine
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="session")
def live(tiny_model_dir: Path) -> Iterator[LiveServer]:
    """One on the tiny model, which fills gaps and knows no tools."""
    with serve(lambda: akunu_py.load(str(tiny_model_dir))) as server:
        yield server


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One on a model that says what it is told to."""
    folder: Path = tmp_path_factory.mktemp("models") / "parrot"
    with serve(lambda: parrot_engine(folder)) as server:
        yield server
