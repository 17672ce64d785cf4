"""TaskQueue: work that waits for one thread, in the order it came; bounded, and to be taken back.

Any thread may put, take back and look; one thread gets. Putting and taking back may be interrupted
by a signal handler that does the same.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition
from typing import Generic, TypeVar

from akunu_py.errors import EngineClosedError, QueueFullError

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Task(Generic[T]):
    """Work for the thread.

    Attributes:
        run: does it, with what the thread owns; raises nothing.
        abandon: called instead if it will not be done, with why: an error, or None for a task
            that was taken back. Raises nothing.
    """

    run: Callable[[T], None]
    abandon: Callable[[BaseException | None], None]


class TaskQueue(Generic[T]):
    """Tasks that wait.

    Args:
        limit: how many may wait; None for any number.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._waiting: deque[Task[T]] = deque()
        self._changed = Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, task: Task[T]) -> None:
        """Appends a task.

        Raises:
            QueueFullError: if as many wait already as may.
            EngineClosedError: if the queue has been closed.
        """
        with self._changed:
            if self._closed:
                raise EngineClosedError()
            if self.limit is not None and len(self._waiting) >= self.limit:
                raise QueueFullError(len(self._waiting))
            self._waiting.append(task)
            self._changed.notify()

    def take_back(self, task: Task[T]) -> bool:
        """Abandons a task if it still waits; returns whether it did."""
        with self._changed:
            if task not in self._waiting:
                return False
            self._waiting.remove(task)
        task.abandon(None)
        return True

    def get(self) -> Task[T] | None:
        """Waits for the next task and removes it; None once the queue has been closed."""
        with self._changed:
            while not (self._waiting or self._closed):
                self._changed.wait()
            return None if self._closed else self._waiting.popleft()

    def close(self, reason: BaseException) -> None:
        """Abandons all that wait, and lets nothing more in."""
        with self._changed:
            self._closed = True
            abandoned = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for task in abandoned:
            task.abandon(reason)
