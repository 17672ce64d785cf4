"""Several requests at once over HTTP: who goes first, and what the server says about them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from akunu_py.options import Options
from akunu_py.sequence import Kind, Sequence
from akunu_py.server.service import Job
from akunu_py.server.settings import ServerSettings
from akunu_py.text.fim import FillRequest
from tests.server.live import HeldEngine, LiveServer, wait_until

SETTINGS = ServerSettings(parallel=2)
LONG = {"prompt": "0123456789" * 30, "n_predict": 300, "num_draft_tokens": 0, "ignore_eos": True}


PREFILL_CHUNKS = 19  # of its prompt


def overlap(held: LiveServer, engine: HeldEngine, *asks: Callable[[], Any]) -> list[Any]:
    """The answers to requests, the first of which decodes when the next job comes."""
    engine.hold(after=PREFILL_CHUNKS + 3)
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(asks[0])]
        engine.wait_until_held()
        answers += map(pool.submit, asks[1:])
        wait_until(lambda: len(held.service.active) > 1)
        engine.release()
        return [answer.result() for answer in answers]


def test_an_infill_is_answered_within_a_long_completion(
    held: LiveServer, engine: HeldEngine
) -> None:
    gap = {"input_prefix": "def f(", "input_suffix": ")", "n_predict": 4, "ignore_eos": True}

    def ask(path: str, body: dict[str, Any]) -> None:
        assert held.ask(path, body)["tokens_predicted"] >= 1

    overlap(held, engine, lambda: ask("/completion", LONG), lambda: ask("/infill", gap))
    assert "/infill" in held.log.wait_for("POST"), "it ended first"


def test_slots_and_status_tell_what_runs(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=30)  # 19 chunks come first
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(held.post, "/completion", LONG)
        engine.wait_until_held()
        slot, idle = held.get("/slots").json()
        (sequence,) = held.get("/status.json").json()["sequences"]
        metrics = held.get("/metrics").text
        engine.release()
        assert answer.result().status_code == 200
    assert (slot["is_processing"], idle["is_processing"]) == (True, False)
    assert slot["id_task"] == sequence["id"]
    assert slot["n_prompt_tokens"] == sequence["prompt_tokens"] == 300
    assert slot["next_token"][0]["n_decoded"] > 5
    assert (sequence["kind"], sequence["phase"]) == ("completion", "decoding")
    assert sequence["computed_tokens"] == 299
    assert "llamacpp:requests_processing 1" in metrics
    held.settle()
    assert held.get("/status.json").json()["sequences"] == []
    assert not any(slot["is_processing"] for slot in held.get("/slots").json())


def test_slots_tell_who_takes_turns(held: LiveServer, engine: HeldEngine) -> None:
    engine.hold(after=40)
    asked = [Sequence([number], Options(100, exact=number > 7)) for number in (7, 8)]
    answers = [held.worker.stream(one) for one in asked]
    engine.wait_until_held()
    slots = held.get("/slots").json()
    engine.release()
    for answer in answers:
        list(answer)
    assert all(slot["is_processing"] for slot in slots)
    assert not any(slot["batched"] for slot in slots), "an exact answer leaves the other alone"
    assert all(slot["batched"] for slot in held.get("/slots").json())


def test_metrics_tell_kinds_and_the_size_of_batches(held: LiveServer, engine: HeldEngine) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}], "num_draft_tokens": 0}
    chat["logit_bias"] = {"257": -100, "258": -100}  # those that end an answer
    held.post("/v1/chat/completions", chat)
    overlap(held, engine, *[lambda: held.post("/completion", LONG | {"n_predict": 60})] * 2)
    held.settle()
    lines = held.get("/metrics").text.splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    tokens = "llamacpp:tokens_predicted_by_kind_total"
    assert float(found[f'{tokens}{{kind="chat"}}']) > 0
    assert float(found[f'{tokens}{{kind="completion"}}']) >= 120
    assert 1 < float(found["llamacpp:n_busy_slots_per_decode"]) <= 2
    forwards = float(found["llamacpp:n_decode_total"])
    assert 60 <= forwards < float(found["llamacpp:tokens_predicted_total"]), "some are shared"
    assert float(found["llamacpp:queue_seconds_total"]) >= 0


def choices_of(answer: Any) -> list[dict[str, Any]]:
    """The choices of an answer of either contract, or of a part of a stream."""
    found: list[dict[str, Any]] = answer if isinstance(answer, list) else answer.get("choices")
    return [answer] if found is None else found


def text_of(choice: dict[str, Any]) -> str:
    return str(choice.get("content", choice.get("text")))


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_choices_are_made_and_streamed_together_and_compute_their_prompt_once(
    held: LiveServer, engine: HeldEngine, path: str
) -> None:
    before = held.counters.prefill_tokens
    body: dict[str, Any] = LONG | {"n": 3, "n_predict": 12, "max_tokens": 12, "seed": 4}
    body |= {"temperature": 1, "id_slot": 1}
    whole = [text_of(choice) for choice in choices_of(held.post(path, body).json())]
    assert held.counters.prefill_tokens - before == 299
    assert len(set(whole)) > 1
    held.reset()
    (events,) = overlap(held, engine, lambda: held.events(path, body))
    chunks = [choice for event in events if event != "[DONE]" for choice in choices_of(event)]
    order = [chunk["index"] for chunk in chunks]
    assert order.index(1) < len(order) - order[::-1].index(0), "two of them at a time"
    texts = ["", "", ""]
    for chunk in chunks:
        texts[chunk["index"]] += text_of(chunk)
    assert texts == whole
    assert sum("timings" in event for event in events) == (3 if path == "/completion" else 1)


def test_choices_that_are_made_together_take_their_time_once(
    held: LiveServer, engine: HeldEngine
) -> None:
    body = LONG | {"n": 2, "max_tokens": 60, "timings_per_token": True, "temperature": 1}
    alone = [0.0, 0.0]
    ((*events, last, _),) = overlap(held, engine, lambda: held.events("/v1/completions", body))
    for event in events:
        if "timings" in event:
            alone[event["choices"][0]["index"]] = event["timings"]["predicted_ms"]
    together = last["timings"]
    assert together["predicted_n"] == 120
    assert max(alone) <= together["predicted_ms"] < sum(alone)


def test_lower_priorities_go_first(
    held: LiveServer, engine: HeldEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.hold(after=0)
    begun: list[int] = []
    runner = held.worker.loading.result().runner
    start = runner.start

    def note(sequence: Sequence) -> None:
        begun.append(sequence.options.priority)
        start(sequence)

    monkeypatch.setattr(runner, "start", note)

    def ask(priority: int) -> None:
        body = LONG | {"prompt": f"{priority} a b c", "n_predict": 3, "priority": priority}
        assert held.post("/completion", body).status_code == 200

    with ThreadPoolExecutor() as pool:
        asked = []
        for priority in (0, 9, 5, -3):
            asked.append(pool.submit(ask, priority))
            if len(asked) == 1:
                engine.wait_until_held()
            wait_until(lambda: held.service.worker.queue_depth >= len(asked) - 1)
        engine.release()
        for outcome in asked:
            outcome.result()
    assert begun == [0, -3, 5, 9]
    assert held.post("/completion", LONG | {"priority": "high"}).status_code == 400


def test_the_kinds_of_jobs() -> None:
    options = Options()
    assert Job("a", options).kind is Kind.COMPLETION
    assert Job(FillRequest("a", "b"), options).kind is Kind.FILL_IN
    assert Job("a", options, is_chat=True).kind is Kind.CHAT
