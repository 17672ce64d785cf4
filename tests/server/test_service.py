"""Cancelled requests are not worked on; the queue is bounded; newer requests replace older ones."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from akunu_py.server.settings import ServerSettings
from tests.server.live import HeldEngine, LiveServer

SETTINGS = ServerSettings(queue=1)
PROMPT = "0123456789abcdef" * 20


def completion(**fields: Any) -> dict[str, Any]:
    """A long request without drafts."""
    return {"prompt": PROMPT, "n_predict": 400, "num_draft_tokens": 0, "ignore_eos": True} | fields


def test_a_waiting_request_leaves_the_queue_when_its_client_disconnects(
    held: LiveServer, engine: HeldEngine
) -> None:
    before = held.counters.requests
    engine.hold(after=0)
    with held.dial("/completion", completion(n_predict=1)) as first:
        engine.wait_until_held()
        with held.dial("/completion", completion(prompt="b")):
            while not held.service.waiting:
                pass
        assert held.log.wait_for("499").endswith(": the client left")
        engine.release()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    held.settle()
    assert held.counters.requests - before == 1


def test_a_full_queue_says_when_to_retry(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(held.post, "/completion", completion(n_predict=1))
        engine.wait_until_held()
        second = pool.submit(held.post, "/completion", completion(n_predict=1))
        while not held.service.waiting:
            pass
        refused = held.post("/completion", completion(n_predict=1))
        engine.release()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_the_choices_of_a_request_take_one_place_in_the_queue(held: LiveServer) -> None:
    answers = held.post("/completion", completion(n=8, n_predict=3)).json()
    assert len(answers) == 8


@pytest.mark.parametrize("streams", [True, False])
def test_a_newer_request_with_the_same_slot_replaces_the_older_one(
    held: LiveServer, engine: HeldEngine, streams: bool
) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, "/completion", completion(id_slot=3, stream=streams))
        engine.wait_until_held()
        newer = pool.submit(held.post, "/completion", completion(id_slot=3, n_predict=2))
        assert older.result().status_code == 409
        engine.release()
        assert newer.result().json()["tokens_predicted"] == 2


def infill(**fields: Any) -> dict[str, Any]:
    """A body for typing; llama.vim always names slot 0."""
    gap = {"id_slot": 0, "input_prefix": "one\n", "prompt": "t", "input_suffix": "\nthree\n"}
    return gap | {"n_predict": 2, "num_draft_tokens": 0} | fields


def test_typing_on_replaces_the_older_request(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, "/infill", infill())
        engine.wait_until_held()
        newer = pool.submit(held.post, "/infill", infill(prompt="tw"))
        assert older.result().status_code == 409
        engine.release()
        assert newer.result().status_code == 200


@pytest.mark.parametrize(
    "other",
    [
        {"input_suffix": "\nfour\n"},
        {"input_prefix": "two\n"},
        {"input_prefix": "", "prompt": "", "input_suffix": "", "n_predict": 0},
        {"id_slot": 1},
        {"id_slot": -1},
    ],
    ids=["another place", "another file", "a warm-up", "another slot", "no slot"],
)
def test_other_editors_and_warm_ups_replace_nothing(
    held: LiveServer, engine: HeldEngine, other: dict[str, Any]
) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, "/infill", infill())
        engine.wait_until_held()
        newer = pool.submit(held.post, "/infill", infill(**other))
        while not held.service.waiting:
            pass
        engine.release()
        assert (older.result().status_code, newer.result().status_code) == (200, 200)


def test_a_deadline_passes_only_after_the_first_whole_line(held: LiveServer) -> None:
    (newline,) = held.post("/tokenize", {"content": "\n"}).json()["tokens"]
    body = {"prompt": "a", "n_predict": 300, "num_draft_tokens": 0, "t_max_predict_ms": 0.001}
    lines = held.post("/completion", body | {"logit_bias": {newline: 1000}}).json()
    assert lines["tokens_predicted"] < 300
    assert lines["stop_type"] == "limit"
    assert lines["has_new_line"]
    line = held.post("/completion", body | {"logit_bias": {newline: False}}).json()
    assert line["tokens_predicted"] == 300 or line["stop_type"] == "eos"


def test_the_server_survives_an_engine_failure(
    held: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = held.worker.loading.result()

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory at 0xdeadbeef")

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", fail)
        failed = held.post("/completion", completion())
    assert failed.status_code == 500
    assert "deadbeef" not in failed.text
    assert failed.json()["error"]["type"] == "server_error"
    assert held.post("/completion", completion(n_predict=1)).status_code == 200


def test_a_failure_within_a_stream_ends_it_with_an_error(
    held: LiveServer, engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = held.worker.loading.result().model
    engine.hold(after=4)
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        events = pool.submit(held.events, "/completion", completion(prompt="a"))
        engine.wait_until_held()
        patch.setattr(model, "forward", None)
        engine.release()
        assert events.result()[0]["stop"] is False
        assert events.result()[-1]["error"]["code"] == 500


def test_a_request_is_counted_once(held: LiveServer) -> None:
    metrics = held.service.metrics
    held.settle()
    answers, generated = metrics.answers, metrics.sums.generated_tokens
    answer = held.post("/completion", completion(n_predict=5)).json()
    held.settle()
    assert metrics.answers == answers + 1
    assert metrics.sums.generated_tokens == generated + answer["tokens_predicted"]
