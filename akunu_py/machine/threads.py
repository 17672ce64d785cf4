"""Reusable threads that compute: MLX keeps a thread for every thread that ever computed."""

import os
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Final

from akunu_py.machine.backend import release_thread, rest_thread

_NAME: Final = "akunu-engine"

_Task = tuple[Callable[[], None], Event]
_idle: Final[list["SimpleQueue[_Task]"]] = []
os.register_at_fork(after_in_child=_idle.clear)


def start(work: Callable[[], None]) -> Event:
    """Calls a function on an idle thread or on a new one; the event is set when it is done."""
    done = Event()
    try:
        tasks = _idle.pop()
    except IndexError:
        tasks = SimpleQueue()
        Thread(target=_work, args=(tasks,), name=_NAME, daemon=True).start()
    tasks.put((work, done))
    return done


def is_computing() -> bool:
    """Whether any of these threads is busy."""
    return sum(thread.name == _NAME for thread in enumerate_threads()) > len(_idle)


def _work(tasks: "SimpleQueue[_Task]") -> None:
    while True:
        work, done = tasks.get()
        try:
            work()
        except BaseException:
            release_thread()
            raise
        else:
            rest_thread()
            del work  # it refers to an engine
            _idle.append(tasks)
        finally:
            done.set()
