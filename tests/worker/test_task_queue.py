"""EngineCounters that waits for one thread."""

import pytest

from akunu_py.errors import EngineClosedError, QueueFullError
from akunu_py.worker.task_queue import Task, TaskQueue

Log = list[object]


def task(log: Log) -> Task[str]:
    return Task(log.append, log.append)


def test_first_come_first_served() -> None:
    queue: TaskQueue[str] = TaskQueue()
    tasks = [task([]) for _ in range(3)]
    for one in tasks:
        queue.put(one)
    assert len(queue) == 3
    assert [queue.get() for _ in range(3)] == tasks


def test_what_was_taken_back_is_abandoned_once_and_frees_its_place() -> None:
    queue: TaskQueue[str] = TaskQueue(1)
    log: Log = []
    one, other = task(log), task(log)
    queue.put(one)
    with pytest.raises(QueueFullError):
        queue.put(other)
    assert queue.take_back(one)
    assert not queue.take_back(one)
    assert log == [None]
    queue.put(other)
    assert queue.get() is other
    assert not queue.take_back(other), "it is under way"


def test_closing_abandons_all_with_the_reason_and_lets_nothing_in() -> None:
    queue: TaskQueue[str] = TaskQueue()
    log: Log = []
    queue.put(task(log))
    queue.put(task(log))
    reason = EngineClosedError()
    queue.close(reason)
    assert log == [reason, reason]
    assert queue.get() is None
    with pytest.raises(EngineClosedError):
        queue.put(task(log))
