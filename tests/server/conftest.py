"""One live server on the tiny model, for whatever no client's own body is needed for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="session")
def live(tiny_model_dir: Path) -> Iterator[LiveServer]:
    with serve(lambda: akunu_py.load(str(tiny_model_dir))) as server:
        yield server
