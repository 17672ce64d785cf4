"""Live servers for all bodies that clients send: one on the bundled model, one on a parrot."""

from collections.abc import Iterator

import pytest

import akunu_py
from akunu_py.model.files import bundled_model
from akunu_py.server.settings import ServerSettings
from tests.server.conftest import SENT_NAMES, parrot
from tests.server.live import LiveServer, serve

__all__ = ["live", "parrot"]


@pytest.fixture(scope="session")
def live() -> Iterator[LiveServer]:
    settings = ServerSettings(aliases=("ember", *SENT_NAMES))
    with serve(akunu_py.load, settings, folder=bundled_model()) as server:
        yield server
