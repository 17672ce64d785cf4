"""A live server for tests: uvicorn on a free port, its event loop on a thread of its own."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import httpx2

from akunu_py.engine import Engine
from akunu_py.server.app import create_app
from akunu_py.server.http import HttpServer
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings
from akunu_py.worker import EngineWorker

PATIENCE_S = 120.0


@dataclass(frozen=True)
class LiveServer:
    """A server that answers.

    Attributes:
        url: where.
        service: behind it; look, but do not touch from another thread.
        worker: behind that.
        client: to talk to it with.
    """

    url: str
    service: Service
    worker: EngineWorker
    client: httpx2.Client

    def post(self, path: str, body: Any) -> httpx2.Response:
        return self.client.post(path, json=body)

    def get(self, path: str) -> httpx2.Response:
        return self.client.get(path)

    def settled(self) -> None:
        """Returns once the engine has done what it was asked before."""
        self.worker.call(lambda _: None)


@contextmanager
def serve(
    load: Callable[[], Engine], settings: ServerSettings | None = None, *, waits: bool = True
) -> Iterator[LiveServer]:
    """Serves an engine; `waits` for it to be loaded."""
    settings = settings or ServerSettings()
    worker = EngineWorker(load, queue_limit=settings.queue)
    service = Service(worker, settings)
    server = HttpServer(create_app(service, settings))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = Thread(target=lambda: asyncio.run(server.serve(listener)), daemon=True)
        thread.start()
        try:
            if waits:
                worker.loading.result(PATIENCE_S)
            with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
                yield LiveServer(url, service, worker, client)
        finally:
            server.stop()
            thread.join(PATIENCE_S)
            worker.close(PATIENCE_S)
