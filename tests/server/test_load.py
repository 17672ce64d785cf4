"""Many clients together, a third of which disconnect: the others get answers, and nothing leaks.

The same load at its full size, on the bundled model: `python -m benchmarks.serving load`.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

import akunu_py
from akunu_py.events import EventStream
from akunu_py.options import MAX_SLOTS
from akunu_py.server.settings import ServerSettings
from tests.server.live import LiveServer, serve
from tests.server.load import Load

CLIENTS = 8
REQUESTS = 40
TOKENS = 12


@pytest.fixture(scope="module")
def crowded(tiny_model_dir: Path) -> Iterator[LiveServer]:
    """A server with fewer places in its queue than clients."""
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), ServerSettings(queue=4)) as server:
        yield server


def settle(live: LiveServer) -> None:
    """Returns once the server is idle."""
    live.settle()
    while live.service.waiting or live.service.processing:
        live.settle()


def streams() -> int:
    """How many event streams are alive in this process."""
    gc.collect()
    return sum(isinstance(thing, EventStream) for thing in gc.get_objects())


def test_many_clients_get_their_answers_and_leave_nothing_behind(crowded: LiveServer) -> None:
    load = Load(crowded.url, tokens=TOKENS)
    visits = load.plan(REQUESTS)
    settle(crowded)
    before, held = crowded.service.metrics.answers, streams()
    outcome = load.run(visits, CLIENTS)
    settle(crowded)
    assert (outcome.wrong, outcome.failed) == ([], [])
    assert outcome.requests == REQUESTS
    assert outcome.answered > 0
    assert outcome.left > REQUESTS / 5
    answers = crowded.service.metrics.answers - before
    assert outcome.choices <= answers <= outcome.choices + outcome.left_choices
    assert len(crowded.worker.loading.result().slots) <= MAX_SLOTS
    assert streams() <= held
