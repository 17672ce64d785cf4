"""An engine on a thread of its own, with a bounded queue before it."""

from akunu_py.worker.engine_worker import THREAD_NAME, EngineWorker, Progress
from akunu_py.worker.event_stream import EventStream

__all__ = ["THREAD_NAME", "EngineWorker", "EventStream", "Progress"]
