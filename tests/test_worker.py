"""One thread for the engine, whoever asks."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event as Flag
from threading import get_ident

import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError, ModelLoadError
from akunu_py.options import Options
from akunu_py.stats import Finish
from akunu_py.worker import EngineWorker


@pytest.fixture
def worker(tiny_model_dir: Path) -> Iterator[EngineWorker]:
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)))
    yield worker
    assert worker.close(60)


def test_everything_happens_on_one_thread_that_is_not_ours(worker: EngineWorker) -> None:
    threads = {worker.call(lambda _: get_ident()) for _ in range(3)}
    assert len(threads) == 1
    assert threads != {get_ident()}


def test_streams_what_the_engine_would(worker: EngineWorker, engine: Engine) -> None:
    options = Options(max_tokens=12)
    events = list(worker.stream("hello", options))
    expected = engine.generate("hello", options)
    assert [token for event in events for token in event.tokens] == expected.token_ids
    assert events[-1].finish_reason is expected.finish_reason


def test_requests_wait_for_each_other(worker: EngineWorker) -> None:
    first = worker.stream("one", Options(max_tokens=5))
    second = worker.stream("two", Options(max_tokens=5))
    assert len(list(second)) > 0
    assert len(list(first)) > 0


def test_cancelling_ends_an_answer_with_its_last_event(worker: EngineWorker) -> None:
    events = worker.stream("hello", Options(max_tokens=None, stop=("never to be seen",)))
    next(events)
    events.cancel()
    last = list(events)[-1]
    assert last.finish_reason in (Finish.CANCELLED, Finish.CONTEXT, Finish.EOS)
    assert worker.call(lambda engine: engine.model.name)


def test_a_request_cancelled_before_its_turn_does_not_run(worker: EngineWorker) -> None:
    gate = Flag()

    def wait(*_: int) -> None:
        gate.wait()

    waiting = worker.stream("first", Options(max_tokens=1), progress=wait)
    events = worker.stream("second", Options(max_tokens=None))
    events.cancel()
    gate.set()
    list(waiting)
    assert [event.finish_reason for event in events] == [Finish.CANCELLED]


def test_leaving_a_stream_cancels_it(worker: EngineWorker) -> None:
    with worker.stream("hello", Options(max_tokens=None)) as events:
        next(events)
    assert events.cancelled


def test_errors_cross_over_and_the_worker_goes_on(worker: EngineWorker) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        list(worker.stream(""))
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda _: 1 // 0)
    assert worker.call(lambda engine: engine.model.name) == "tiny"


def test_a_model_that_does_not_load_is_everybodys_error(tmp_path: Path) -> None:
    worker = EngineWorker(lambda: akunu_py.load(str(tmp_path)))
    with pytest.raises(ModelLoadError):
        worker.call(lambda engine: engine)
    with pytest.raises(ModelLoadError):
        list(worker.stream("hello"))
    assert worker.failed
    assert worker.close(60)


def test_closing_cancels_what_is_under_way(tiny_model_dir: Path) -> None:
    worker = EngineWorker(lambda: akunu_py.load(str(tiny_model_dir)))
    events = worker.stream("hello", Options(max_tokens=None))
    next(events)
    assert worker.close(60)
    assert list(events)[-1].finish_reason is not None
    with pytest.raises(RuntimeError, match="closed"):
        worker.stream("more")
