"""An engine on a thread of its own, with a bounded queue before it."""

from akunu_py.worker.engine_worker import EngineWorker

__all__ = ["EngineWorker"]
