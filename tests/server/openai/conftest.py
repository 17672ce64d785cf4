"""One live server on a model that says what it is told to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parrot import parrot_engine
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("models") / "parrot"
    with serve(lambda: parrot_engine(folder)) as server:
        yield server
