"""Damaged requests of every kind: the server refuses them or answers, and never fails."""

from random import Random
from urllib.parse import urlsplit

from benchmarks.fuzz_server import BODIES, ask, mutated
from tests.server.live import LiveServer


def test_damaged_requests_never_fail(live: LiveServer) -> None:
    port = urlsplit(live.url).port or 0
    random = Random(20)
    for _ in range(20):
        for path, body in BODIES:
            raw = mutated(random, body)
            assert ask(port, path, raw) not in (0, 500), (path, raw[:500])
