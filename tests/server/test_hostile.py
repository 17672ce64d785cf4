"""Each kind of attack, once: it is refused or answered, and a plain client does not notice.

`benchmarks.hostile` measures what it notices.
"""

import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from akunu_py.text import sandbox
from akunu_py.text.sandbox import TrialProcess
from tests.server.attacks import ATTACKS
from tests.server.live import PATIENCE_S, LiveServer

ALIKE = (
    "fewer patterns", "patterns of a tool", "patterns of many tools", "patterns, Ollama",
    "patterns, Responses", "multiples", "doubling rules",
)  # fmt: skip
"""They end as `patterns` do."""
PLAIN = {"prompt": "one two", "n_predict": 4, "temperature": 0}
SERVED = (200, 400, 403, 413, 429)


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Grammars get little time."""
    process = TrialProcess(cpu_s=0.3)
    with pytest.MonkeyPatch.context() as patch, closing(process):
        patch.setattr(sandbox, "trial_process", lambda: process)
        yield


@pytest.mark.parametrize("name", sorted(ATTACKS.keys() - set(ALIKE)))
def test_others_are_answered_as_ever(live: LiveServer, name: str) -> None:
    expected = live.ask("/completion", PLAIN)["content"]
    attack, parts = ATTACKS[name], urlsplit(live.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=PATIENCE_S) as link:
        with suppress(ConnectionError):  # it is refused before its end
            link.sendall(attack.data(0))
        assert live.ask("/completion", PLAIN)["content"] == expected
        assert live.get("/health").status_code == 200
        if attack.answers:
            assert int(link.makefile("rb").readline().split()[1]) in SERVED
    live.settle()
    assert live.ask("/completion", PLAIN)["content"] == expected
