"""Cancelled requests are not worked on; the queue is bounded; newer requests replace older ones.

With many clients, a third of which disconnect, the others get answers and nothing leaks.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import akunu_py
from akunu_py.events import Completion, Event, EventStream
from akunu_py.model.library import LocalModel
from akunu_py.options import MAX_SLOTS, Grammar, Options
from akunu_py.rounds import Round, Stats
from akunu_py.server import wire
from akunu_py.server.errors import UnavailableError
from akunu_py.server.service import Job, Metrics, Service
from akunu_py.server.settings import ServerSettings
from tests.server.live import NOWHERE, HeldEngine, LiveServer, serve, wait_until
from tests.server.load import Load

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
            wait_until(lambda: held.service.worker.queue_depth)
        assert held.log.wait_for("499").endswith(": the client disconnected")
        engine.release()
        assert first.recv(100).startswith(b"HTTP/1.1 200")
    held.settle()
    assert held.counters.requests - before == 1


def test_a_long_answer_that_ends_lets_other_work_in_between() -> None:
    count, turns = 5_000, 0

    async def stream(_: Any, *, end_only: bool) -> AsyncIterator[tuple[int, Event]]:
        assert end_only
        for _ in range(count):
            yield 0, Event(Round((1,)), (), Stats())

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask() -> Completion:
        other = asyncio.create_task(other_work())
        service = SimpleNamespace(engine=engine, stream=stream)
        (completion,) = await Service.complete(cast(Service, service), cast(Any, [None]))
        other.cancel()
        return completion

    engine = SimpleNamespace(model=SimpleNamespace(name="a model"))
    assert len(asyncio.run(ask()).token_ids) == count
    assert turns >= count // 500


def test_a_full_queue_says_when_to_retry(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(held.post, "/completion", completion(n_predict=1))
        engine.wait_until_held()
        second = pool.submit(held.post, "/completion", completion(n_predict=1))
        wait_until(lambda: held.service.worker.queue_depth)
        refused = held.post("/completion", completion(n_predict=1))
        engine.release()
        assert (first.result().status_code, second.result().status_code) == (200, 200)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["type"] == "rate_limit_error"


def test_the_choices_of_a_request_take_one_place_in_the_queue(held: LiveServer) -> None:
    answers = held.post("/completion", completion(n=8, n_predict=3)).json()
    assert len(answers) == 8


MESSAGES = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True}
KEPT_ALIVE = [
    ("/completion", {"prompt": "a", "n_predict": 2, "stream": True}, b"", b"\n: waiting\n\n"),
    ("/v1/chat/completions", MESSAGES, b"", b"\n: waiting\n\n"),
    ("/v1/messages", MESSAGES, b"event: message_start\n", b"event: ping\n"),
    ("/v1/responses", {"input": "a", "stream": True}, b"event: response.created\n",
     b"event: response.in_progress\n"),
    ("/api/generate", {"prompt": "a", "raw": True, "options": {"num_predict": 2}}, b"", b""),
]  # fmt: skip


@pytest.mark.parametrize("wanted", KEPT_ALIVE, ids=lambda wanted: wanted[0])
def test_a_stream_begins_while_its_request_waits_and_is_never_silent(
    held: LiveServer,
    engine: HeldEngine,
    monkeypatch: pytest.MonkeyPatch,
    wanted: tuple[str, dict[str, Any], bytes, bytes],
) -> None:
    path, body, opening, kept_alive = wanted
    monkeypatch.setattr(wire, "SILENCE_S", 0.01)
    engine.hold(after=0)
    with held.dial("/completion", completion(n_predict=1)):
        engine.wait_until_held()
        with held.dial(path, body) as waiting:
            said = waiting.recv(20)
            while opening not in said or said.count(kept_alive) < 3:
                said += waiting.recv(4096)
            assert said.startswith(b"HTTP/1.1 200")
            engine.release()
            while b"0\r\n\r\n" not in said:
                said += waiting.recv(4096)
    assert (b"message_start" in said) is (path == "/v1/messages")
    assert b"error" not in said.replace(b'"error":null', b"")


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_a_prompt_that_is_too_long_is_refused_before_it_waits(
    held: LiveServer, engine: HeldEngine, path: str
) -> None:
    engine.hold(after=0)
    with held.dial("/completion", completion(n_predict=1)):
        engine.wait_until_held()
        refused = held.post(path, completion(prompt="ab " * 5000, stream=True))
    assert refused.status_code == 400
    assert "exceeds the available context size" in refused.json()["error"]["message"]


def infill(**fields: Any) -> dict[str, Any]:
    """A body for typing; llama.vim always names slot 0."""
    gap = {"id_slot": 0, "input_prefix": "one\n", "prompt": "t", "input_suffix": "\nthree\n"}
    return gap | {"n_predict": 2, "num_draft_tokens": 0, "ignore_eos": True} | fields


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("/completion", {"id_slot": 3, "stream": True}, {"id_slot": 3, "n_predict": 2}),
        ("/completion", {"id_slot": 3, "stream": False}, {"id_slot": 3, "n_predict": 2}),
        ("/infill", {}, {"prompt": "tw"}),
    ],
    ids=["the same slot, streamed", "the same slot", "typing on"],
)
def test_a_newer_request_replaces_the_older_one(
    held: LiveServer, engine: HeldEngine, path: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    body = infill if path == "/infill" else completion
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, path, body(**before))
        engine.wait_until_held()
        newer = pool.submit(held.post, path, body(**after))
        replaced = older.result()
        assert "superseded_error" in replaced.text
        assert replaced.status_code == (200 if replaced.text.startswith("data: ") else 409)
        engine.release()
        assert newer.result().json()["tokens_predicted"] == 2


def test_a_refused_request_replaces_nothing(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, "/completion", completion(id_slot=0, n_predict=2))
        engine.wait_until_held()
        for refused in ({"prompt": ""}, {"prompt": [-1]}, {"prompt": "ab " * 5000}):
            answer = held.post("/completion", completion(id_slot=0) | refused)
            assert answer.status_code == 400
        engine.release()
        assert older.result().json()["tokens_predicted"] == 2


def test_a_request_that_finds_the_queue_full_replaces_nothing(
    held: LiveServer, engine: HeldEngine
) -> None:
    engine.hold(after=0)
    with ThreadPoolExecutor() as pool:
        older = pool.submit(held.post, "/completion", completion(id_slot=0, n_predict=2))
        engine.wait_until_held()
        waiting = pool.submit(held.post, "/completion", completion(n_predict=1))
        wait_until(lambda: held.service.worker.queue_depth)
        assert held.post("/completion", completion(id_slot=0)).status_code == 429
        engine.release()
        assert older.result().json()["tokens_predicted"] == 2
        assert waiting.result().status_code == 200


def test_a_request_with_a_grammar_replaces_nothing() -> None:
    older, newer = (
        Job("ab", Options(grammar=grammar), slot=1) for grammar in (None, Grammar("regex", "a"))
    )
    assert Job("abc", Options(), slot=1).replaces(older)
    assert not newer.replaces(older)


def test_another_machine_replaces_nothing(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=0)
    with held.dial("/completion", completion(id_slot=0)):
        engine.wait_until_held()
        (older,) = held.service.active
        newer = Job(older.prompt, older.options, slot=0)
        newer.peer = older.peer
        assert newer.replaces(older)
        newer.peer = "192.0.2.7"
        assert not newer.replaces(older)


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
        wait_until(lambda: held.service.worker.queue_depth)
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


CLIENTS = 8
REQUESTS = 40
TOKENS = 12


@pytest.fixture(scope="module")
def crowded(tiny_model_dir: Path) -> Iterator[LiveServer]:
    """A server with fewer places in its queue than clients."""
    with serve(lambda: akunu_py.load(str(tiny_model_dir)), ServerSettings(queue=4)) as server:
        yield server


def streams() -> int:
    """How many event streams are alive in this process."""
    gc.collect()
    return sum(isinstance(thing, EventStream) for thing in gc.get_objects())


def test_many_clients_get_their_answers_and_leave_nothing_behind(crowded: LiveServer) -> None:
    load = Load(crowded.url, tokens=TOKENS)
    visits = load.plan(REQUESTS)
    crowded.settle()
    before, held = crowded.service.metrics.answers, streams()
    outcome = load.run(visits, CLIENTS)
    crowded.settle()
    assert (outcome.wrong, outcome.failed) == ([], [])
    assert outcome.requests == REQUESTS
    assert outcome.answered > 0
    assert outcome.left > REQUESTS / 5
    answers = crowded.service.metrics.answers - before
    assert outcome.choices <= answers <= outcome.choices + outcome.left_choices
    assert len(crowded.worker.loading.result().slots) <= MAX_SLOTS
    assert streams() <= held


def test_calls_end_when_the_server_stops() -> None:
    outcome: Future[None] = Future()
    worker: Any = SimpleNamespace(submit=lambda *_, **__: outcome)
    model = LocalModel("model", NOWHERE)
    service = Service(worker, ServerSettings(), model, ("model",), Metrics())

    async def run() -> None:
        call = asyncio.ensure_future(service.call(lambda _: None))
        await asyncio.sleep(0)
        service.stop()
        for one in (call, service.call(lambda _: None)):
            with pytest.raises(UnavailableError, match="shutting down"):
                await one

    asyncio.run(run())
    assert outcome.cancelled()
