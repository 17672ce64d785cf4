"""The engine's thread: its requests, its queue, and its end."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import get_ident
from typing import Any
from weakref import ref

import pytest

import akunu_py
from akunu_py.drafting.base import NoDrafter
from akunu_py.engine import Engine
from akunu_py.errors import (
    EngineClosedError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
    RankError,
)
from akunu_py.events import Event
from akunu_py.options import Options
from akunu_py.rounds import Finish
from akunu_py.worker import EngineWorker


@pytest.fixture
def worker(tiny_model_dir: Path) -> Iterator[EngineWorker]:
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)))
    yield worker
    assert worker.close(60)


def test_everything_happens_on_one_other_thread(worker: EngineWorker) -> None:
    threads = {worker.call(lambda _: get_ident()) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {get_ident()}


def test_what_the_engine_calls_cannot_wait_for_its_worker(worker: EngineWorker) -> None:
    for wait in (
        lambda: worker.call(lambda _: 1),
        lambda: list(worker.stream("a", Options(2))),
        lambda: worker.close(1),
    ):
        with pytest.raises(InvalidRequestError, match="cannot wait for the engine's worker"):
            worker.call(lambda _, wait=wait: wait())  # type: ignore[misc]
    assert list(worker.stream("a", Options(2)))


def test_freed_memory_is_given_back_when_it_is_idle(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = SimpleQueue[int]()
    monkeypatch.setattr("akunu_py.worker.give_back_memory", lambda: given_back.put(1))
    monkeypatch.setattr("akunu_py.worker._TRIM_EVERY_S", 0.01)
    assert list(worker.stream("a", Options(2)))
    assert [given_back.get(timeout=60) for _ in range(2)]  # again, without another request


def test_streams_what_the_engine_would(worker: EngineWorker, engine: Engine) -> None:
    options = Options(max_tokens=12)
    events = list(worker.stream("hello", options))
    expected = engine.generate("hello", options)
    assert [token for event in events for token in event.tokens] == expected.token_ids
    assert events[-1].finish_reason is expected.finish_reason


def test_cancelling_ends_an_answer_with_its_last_event(worker: EngineWorker) -> None:
    events = worker.stream("hello", Options(max_tokens=None, stop=("never to be seen",)))
    next(events)
    events.cancel()
    last = list(events)[-1]
    assert last.finish_reason in (Finish.CANCELLED, Finish.CONTEXT, Finish.EOS)
    assert worker.call(lambda engine: engine.model.name)


def test_leaving_a_stream_cancels_it(worker: EngineWorker) -> None:
    with worker.stream("hello", Options(max_tokens=None)) as events:
        next(events)
    assert events.cancelled


def test_errors_reach_the_caller_and_the_worker_continues(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        list(worker.stream(""))
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda _: 1 // 0)
    assert worker.call(lambda engine: engine.model.name) == "tiny"


def test_every_request_fails_if_the_model_does_not_load(tmp_path: Path) -> None:
    worker = EngineWorker(lambda: akunu_py.load(str(tmp_path)))
    with pytest.raises(ModelLoadError):
        worker.call(lambda engine: engine)
    with pytest.raises(ModelLoadError):
        list(worker.stream("hello"))
    assert worker.failed
    assert worker.close(60)


def test_messages_are_a_prompt(worker: EngineWorker) -> None:
    said = [{"role": "user", "content": "hello"}]
    events = list(worker.stream(said, Options(max_tokens=4)))
    expected = worker.call(lambda engine: engine.generate(said, Options(max_tokens=4)))
    assert [token for event in events for token in event.tokens] == expected.token_ids


class Blocked:
    """A worker that is held in the middle of a request until `let_go`."""

    def __init__(self, worker: EngineWorker) -> None:
        self._gate = Flag()
        self._begun = Flag()
        self._model = worker.loading.result().model
        self._forward = self._model.forward
        self._model.forward = self._wait  # type: ignore[method-assign, assignment]
        self.running = worker.stream("first", Options(max_tokens=1))
        assert self._begun.wait(60)

    def _wait(self, *inputs: Any) -> Any:
        self._model.forward = self._forward  # type: ignore[method-assign]
        self._begun.set()
        self._gate.wait()
        return self._forward(*inputs)

    def let_go(self) -> None:
        self._gate.set()


class TestWaiting:
    def test_a_full_queue_refuses_immediately_and_says_how_many_wait(
        self, tiny_model_dir: Path
    ) -> None:
        worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)), queue_limit=2)
        blocked = Blocked(worker)
        assert worker.busy
        waiting = [worker.stream(f"{number}", Options(max_tokens=1)) for number in range(2)]
        assert worker.queue_depth == 2
        for put in (lambda: worker.stream("more"), lambda: worker.submit(lambda _: None)):
            with pytest.raises(QueueFullError, match="Too many requests are waiting"):
                put()
        blocked.let_go()
        assert all(list(events) for events in (blocked.running, *waiting))
        assert worker.call(lambda _: worker.busy)
        assert worker.queue_depth == 0
        assert worker.close(60)

    def test_a_cancelled_request_ends_immediately_and_frees_its_place(
        self, worker: EngineWorker
    ) -> None:
        blocked = Blocked(worker)
        events = worker.stream("second", Options(max_tokens=None))
        events.cancel()
        assert worker.queue_depth == 0
        assert [event.finish_reason for event in events] == [Finish.CANCELLED]
        blocked.let_go()
        list(blocked.running)
        assert worker.call(lambda engine: engine.counters.requests) == 1

    def test_requests_are_served_in_order(self, worker: EngineWorker) -> None:
        blocked = Blocked(worker)
        served: list[int] = []

        def serve(number: int, _: Engine) -> None:
            served.append(number)

        outcomes = [worker.submit(partial(serve, number)) for number in range(3)]
        blocked.let_go()
        for outcome in outcomes:
            outcome.result(60)
        assert served == [0, 1, 2]

    def test_a_call_can_be_taken_back(self, worker: EngineWorker) -> None:
        blocked = Blocked(worker)
        called: list[Engine] = []
        outcome = worker.submit(called.append)
        assert outcome.cancel()
        blocked.let_go()
        assert worker.call(lambda _: called) == []

    def test_many_threads_send_one_request_each(self, worker: EngineWorker) -> None:
        def ask(number: int) -> list[Event]:
            with worker.stream([number], Options(max_tokens=3)) as events:
                if number % 3 == 0:
                    events.cancel()
                return list(events)

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(ask, range(1, 61)))
        ends = [[event.finish_reason for event in answer].count(None) for answer in answers]
        assert [len(answer) - 1 for answer in answers] == ends, "each ends once, and last"
        assert worker.queue_depth == 0


class LastWords(NoDrafter):
    """Fails when it gets the last of three tokens."""

    def __init__(self) -> None:
        self._left = 3

    def extend(self, tokens: Sequence[int]) -> None:
        self._left -= len(tokens)
        if not self._left:
            raise RuntimeError("too late")


class TestFailures:
    def test_a_drafter_that_fails_at_the_end_ends_its_request_alone(
        self, worker: EngineWorker
    ) -> None:
        worker.call(lambda engine: engine.add_drafter("late", lambda _: LastWords()))
        with pytest.raises(RuntimeError, match="too late"):
            list(worker.stream("hello", Options(max_tokens=3, drafter="late", num_draft_tokens=2)))
        assert list(worker.stream("hello", Options(max_tokens=2)))
        assert not any(slot.busy for slot in worker.loading.result().slots)

    def test_nobody_hangs_after_an_error_that_should_not_be(
        self, worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> bool:
            monkeypatch.undo()
            raise ZeroDivisionError

        blocked = Blocked(worker)
        waiting = worker.stream("two")
        monkeypatch.setattr(worker.loading.result().runner, "advance", fail)
        blocked.let_go()
        with pytest.raises(ZeroDivisionError):
            list(waiting)
        assert list(worker.stream("three", Options(max_tokens=2)))

    @pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration])
    def test_a_drafter_that_stops_is_an_error(
        self, worker: EngineWorker, error: type[Exception]
    ) -> None:
        class Stopping(NoDrafter):
            def begin(self, *_: object) -> None:
                raise error

        worker.call(lambda engine: engine.add_drafter("stopping", lambda _: Stopping()))
        with pytest.raises((RuntimeError, error)):
            list(worker.stream("hello", Options(drafter="stopping")))

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, MemoryError])
    def test_a_failing_request_does_not_end_the_thread(
        self, worker: EngineWorker, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> str:
            raise error("from within")

        with monkeypatch.context() as patch:
            patch.setattr(worker.loading.result().tokenizer, "encode", fail)
            with pytest.raises(error, match="from within"):
                list(worker.stream("hello"))
        with pytest.raises(error, match="from within"):
            worker.call(lambda _: fail())
        expected = worker.call(lambda engine: engine.generate("hello", Options(max_tokens=4)))
        events = list(worker.stream("hello", Options(max_tokens=4)))
        assert [token for event in events for token in event.tokens] == expected.token_ids

    def test_requests_end_if_the_model_waits_for_ever_for_a_lost_rank(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tells: list[Callable[[Exception], object]] = []

        def load() -> Engine:
            engine = akunu_py.load(str(tiny_model_dir))
            monkeypatch.setattr(engine.model, "on_lost", tells.append)
            return engine

        worker = EngineWorker(load)
        blocked = Blocked(worker)
        waiting = worker.stream("two")
        tells[0](RankError("lost"))  # the watching thread does it
        for events in (blocked.running, waiting):
            with pytest.raises(RankError, match="lost"):
                list(events)
        blocked.let_go()
        assert worker.close(60)


class TestClosing:
    def test_everything_ends(self, worker: EngineWorker) -> None:
        blocked = Blocked(worker)
        waiting = [worker.stream("second"), worker.stream("third")]
        outcome = worker.submit(lambda engine: engine.model.name)
        assert not worker.close(0), "it is within a prefill still"
        for events in waiting:
            assert [event.finish_reason for event in events] == [Finish.CANCELLED]
        with pytest.raises(EngineClosedError):
            outcome.result(60)
        blocked.let_go()
        assert worker.close(60)
        assert list(blocked.running)[-1].finish_reason is Finish.LENGTH, "it wanted one token"
        with pytest.raises(EngineClosedError, match="closed"):
            worker.stream("more")

    def test_while_the_model_loads(self) -> None:
        gate = Flag()

        def load() -> Engine:
            gate.wait()
            raise ModelLoadError("too late")

        worker = EngineWorker(load)
        events = worker.stream("hello")
        assert not worker.close(0)
        assert [event.finish_reason for event in events] == [Finish.CANCELLED]
        gate.set()
        assert worker.close(60)


def test_an_event_loop_reads_several_requests(worker: EngineWorker) -> None:
    async def answer(prompt: str) -> list[int]:
        events = worker.stream(prompt, Options(max_tokens=12))
        events.attach(lambda: None)
        return [token async for event in events for token in event.tokens]

    async def answers() -> list[list[int]]:
        return await asyncio.gather(*map(answer, prompts))

    def alone(engine: Engine) -> list[list[int]]:
        return [engine.generate(prompt, Options(max_tokens=12)).token_ids for prompt in prompts]

    prompts = ["one", "two", "three"]
    assert asyncio.run(answers()) == worker.call(alone)


def test_nothing_of_a_request_waits_for_the_garbage_collector(worker: EngineWorker) -> None:
    """What it holds may be large: its prompt, and its cache if the pool has dropped that."""

    class Text(str):
        """A text that can be watched."""

    gc.collect()
    gc.disable()
    try:
        text = Text("abc")
        prompt, events = ref(text), worker.stream(text, Options(max_tokens=40))
        next(events)
        stream, sequence = ref(events), ref(worker.scheduler.running[0])
        for _ in events:
            pass
        del text, events, _
        list(worker.stream("next", Options(max_tokens=1)))
        assert (prompt(), sequence(), stream()) == (None, None, None)
    finally:
        gc.enable()


def test_a_thread_of_an_engine_that_was_closed_serves_the_next(tiny_model_dir: Path) -> None:
    """MLX would keep a thread of its own for each."""

    def owner(_: Engine) -> int:
        return get_ident()

    owners = []
    for _ in range(3):
        worker = EngineWorker(lambda: akunu_py.load(tiny_model_dir))
        owners.append(worker.call(owner))
        assert worker.close()
    assert len(set(owners)) == 1
