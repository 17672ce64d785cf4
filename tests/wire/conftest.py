"""One live server on the bundled model, for all bodies that clients send."""

from collections.abc import Iterator

import pytest

import akunu_py
from tests.server.live import LiveServer, serve


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer]:
    with serve(akunu_py.load) as server:
        yield server
