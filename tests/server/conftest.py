"""Live servers on tiny models, shared by all tests that need no settings of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from akunu_py.server.settings import ServerSettings
from tests.parrot import parrot_engine
from tests.server.chromium import Tab, find_chromium, open_tab
from tests.server.live import FRIEND, KEY, HeldEngine, LiveServer, serve

SENT_NAMES = (
    "m", "local", "claude", "claude-sonnet-4-5", "gpt-5-codex", "qwen2.5-coder", "codestral",
    "codestral-latest", "deepseek-chat",
)  # fmt: skip
"""What clients call a model if nobody tells them otherwise."""


@pytest.fixture(scope="session")
def live(tiny_model_dir: Path) -> Iterator[LiveServer]:
    """One on the tiny model, which fills gaps and has no tools."""
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), folder=tiny_model_dir) as server:
        yield server


@pytest.fixture(scope="session")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One on a model that repeats the last message."""
    folder: Path = tmp_path_factory.mktemp("models") / "parrot"
    settings = ServerSettings(aliases=("parrot", *SENT_NAMES))
    with serve(lambda: parrot_engine(folder), settings, folder=folder) as server:
        yield server


@pytest.fixture(scope="session")
def guarded(tiny_model_dir: Path) -> Iterator[LiveServer]:
    """One with an API key, further names of itself and of its model, allowed web pages, bodies up
    to 1,000 bytes, and without `/slots` and `/metrics`."""
    settings = ServerSettings(
        api_key=KEY,
        origins=(FRIEND, "localhost"),
        hosts=("machine.example",),
        aliases=("mine", "yours"),
        disabled=("slots", "metrics"),
        body_bytes=1000,
    )
    load = lambda: akunu_py.load(str(tiny_model_dir))  # noqa: E731
    with serve(load, settings, folder=tiny_model_dir) as server:
        yield server


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> HeldEngine:
    """The engine behind `held`."""
    return HeldEngine(tiny_model_dir, prefill_step_size=16)


@pytest.fixture(scope="module")
def held_server(engine: HeldEngine, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    """A server whose engine can be held, with the `SETTINGS` of the module."""
    with serve(engine.load, getattr(request.module, "SETTINGS", None)) as server:
        yield server


@pytest.fixture
def held(held_server: LiveServer, engine: HeldEngine) -> Iterator[LiveServer]:
    """The same, without what earlier tests left in its caches and in its log."""
    held_server.reset()
    yield held_server
    engine.release()
    held_server.settle()


@pytest.fixture(scope="session")
def tab() -> Iterator[Tab]:
    """A page in a browser."""
    if (chromium := find_chromium()) is None:
        pytest.skip("there is no Chromium here")
    with open_tab(chromium) as tab:
        yield tab
