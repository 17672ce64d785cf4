"""Live servers for all bodies that clients send: one on the bundled model, one on a parrot."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from tests.parrot import parrot_engine
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer]:
    with serve(akunu_py.load) as server:
        yield server


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One on a model that repeats the last message, and knows tools."""
    folder: Path = tmp_path_factory.mktemp("models") / "parrot"
    with serve(lambda: parrot_engine(folder)) as server:
        yield server
