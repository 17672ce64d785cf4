"""Damaged requests of every kind: the server refuses them or answers, and never fails."""

import os
from random import Random
from urllib.parse import urlsplit

from tests.server.fuzzing import BODIES, ask, mutated
from tests.server.live import LiveServer

ROUNDS = int(os.environ.get("AKUNU_FUZZ_ROUNDS", "20"))


def test_damaged_requests_never_fail(live: LiveServer) -> None:
    port = urlsplit(live.url).port or 0
    random = Random(20)
    for _ in range(ROUNDS):
        for path, body in BODIES:
            raw = mutated(random, body)
            assert ask(port, path, raw) not in (0, 500), (path, raw[:500])
