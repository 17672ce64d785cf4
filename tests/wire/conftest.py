"""Live servers for all bodies that clients send: one on the bundled model, one on a parrot."""

from collections.abc import Iterator

import pytest

import akunu_py
from tests.server.conftest import parrot
from tests.server.live import LiveServer, serve

__all__ = ["live", "parrot"]


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer]:
    with serve(akunu_py.load) as server:
        yield server
