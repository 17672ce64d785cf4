"""A client that disconnects frees the engine within one prefill chunk or one round.

The work counters show it, on a prompt as long as an editor's file.
"""

import logging
import re
import socket
import struct
from dataclasses import replace
from typing import Any

import pytest

from akunu_py.rounds import EngineCounters
from tests.server.live import HeldEngine, LiveServer
from tests.tiny_model import write_tiny_model

PROMPT_TOKENS = 1500
PREFILL_STEP = 128
CHUNKS = -(-PROMPT_TOKENS // PREFILL_STEP)
PATHS = ["/completion", "/infill", "/v1/completions", "/v1/chat/completions", "/api/generate"]

everywhere = pytest.mark.parametrize("path", PATHS)
streamed_or_not = pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> HeldEngine:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return HeldEngine(
        write_tiny_model(folder, max_position_embeddings=4096), prefill_step_size=PREFILL_STEP
    )


def body(path: str, **changes: Any) -> dict[str, Any]:
    """A request with a prompt of 1,500 one-byte tokens and a long completion."""
    text = ("0123456789abcde\n" * PROMPT_TOKENS)[:PROMPT_TOKENS]
    asked: dict[str, Any] = {"prompt": text}
    if path == "/infill":
        asked = {"input_prefix": text[:1200], "prompt": "x", "input_suffix": text[1200:]}
    elif path == "/v1/chat/completions":
        asked = {"messages": [{"role": "user", "content": text}]}
    elif path == "/api/generate":
        asked |= {"raw": True, "options": {"num_predict": 1000, "temperature": 0}}
    asked |= {"max_tokens": 1000, "temperature": 0, "logit_bias": {"257": -100, "258": -100}}
    return asked | changes


@everywhere
@streamed_or_not
def test_in_the_middle_of_a_prefill(
    held: LiveServer, engine: HeldEngine, path: str, streams: bool
) -> None:
    before = replace(held.counters)
    engine.hold(after=1)
    with held.dial(path, body(path, stream=streams)):
        engine.wait_until_held()
        at_the_disconnect = replace(held.counters)
    done = left(held, engine, path)
    assert at_the_disconnect.prefill_chunks - before.prefill_chunks == 1
    assert done.prefill_chunks - at_the_disconnect.prefill_chunks <= 1 < CHUNKS - 1
    assert done.prefill_tokens - before.prefill_tokens <= 2 * PREFILL_STEP < PROMPT_TOKENS
    assert done.rounds == before.rounds


@everywhere
@streamed_or_not
@pytest.mark.parametrize("drafts", [0, 4], ids=["plain", "speculative"])
def test_in_the_middle_of_decoding(
    held: LiveServer, engine: HeldEngine, path: str, streams: bool, drafts: int
) -> None:
    before = replace(held.counters)
    engine.hold(after=CHUNKS + 8)
    with held.dial(path, body(path, stream=streams, num_draft_tokens=drafts)) as connection:
        engine.wait_until_held()
        at_the_disconnect = replace(held.counters)
        if streams:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    done = left(held, engine, path)
    assert at_the_disconnect.rounds > before.rounds
    assert done.rounds - at_the_disconnect.rounds <= 1


@everywhere
def test_with_a_second_request_behind_it_on_the_connection(
    held: LiveServer, engine: HeldEngine, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server does not read from such a connection, so it notices when it sends."""
    caplog.set_level(logging.INFO)
    cancelled = held.service.metrics.cancelled
    engine.hold(after=CHUNKS + 8)
    with held.dial(path, body(path, stream=True, num_draft_tokens=0)) as connection:
        connection.sendall(b"GET /props HTTP/1.1\r\nHost: localhost\r\n\r\n")
        engine.wait_until_held()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    engine.release()
    assert re.fullmatch(
        rf"POST {path} 200 [\d.]+ ms, model: the client disconnected", held.log.wait_for(path)
    )
    held.settle()
    assert held.service.metrics.cancelled == cancelled + 1
    assert "failed" not in caplog.text


def test_cancelled_work_stays_in_the_cache(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=1)
    with held.dial("/completion", body("/completion")):
        engine.wait_until_held()
    left(held, engine, "/completion")
    answer = held.post("/completion", body("/completion", max_tokens=1)).json()
    assert answer["timings"]["cache_n"] == 2 * PREFILL_STEP


def left(held: LiveServer, engine: HeldEngine, path: str) -> EngineCounters:
    """The counters once the server has noticed the disconnect and the engine is free."""
    held.log.wait_for(path)
    engine.release()
    held.settle()
    return replace(held.counters)
