"""A live server for tests: uvicorn on a free port, with its event loop on a thread of its own."""

import json
import logging
import math
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Event as Flag
from threading import Thread
from time import monotonic, sleep
from typing import Any

import httpx2
import uvloop

import akunu_py
from akunu_py.engine import Engine
from akunu_py.model.library import LocalModel
from akunu_py.rounds import EngineCounters
from akunu_py.server.app import create_app
from akunu_py.server.http import HttpServer
from akunu_py.server.pool import Pool
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings
from akunu_py.worker import EngineWorker

PATIENCE_S = 120.0
KEY = "open sesame"
NOWHERE = Path("model")
"""The folder of a model that clients are told nothing about; it is called `model`."""
FRIEND = "http://friend.example"


def wait_until(holds: Callable[[], object]) -> None:
    """Returns once something holds; what it waits for computes meanwhile."""
    late = monotonic() + PATIENCE_S
    while not holds():
        assert monotonic() < late
        sleep(0.001)


class RequestLines(logging.Handler):
    """What the server logged, one line per request."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: SimpleQueue[str] = SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.put(record.getMessage())

    def wait_for(self, text: str) -> str:
        """The next line that has this text; waits for it."""
        while text not in (line := self._lines.get(timeout=PATIENCE_S)):
            pass
        return line

    def clear(self) -> None:
        while not self._lines.empty():
            self._lines.get()


@dataclass(frozen=True)
class LiveServer:
    """A server that answers; look at its service, but do not touch it from another thread."""

    url: str
    pool: Pool
    client: httpx2.Client
    log: RequestLines

    @property
    def service(self) -> Service:
        return self.pool.services[0]

    @property
    def worker(self) -> EngineWorker:
        return self.service.worker

    @property
    def counters(self) -> EngineCounters:
        return self.worker.loading.result().counters

    def post(self, path: str, body: Any, **headers: str) -> httpx2.Response:
        return self.client.post(path, json=body, headers=headers)

    def ask(self, path: str, body: Any) -> Any:
        """The JSON of an answer."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def get(self, path: str, **headers: str) -> httpx2.Response:
        return self.client.get(path, headers=headers)

    def events(self, path: str, body: Any) -> list[Any]:
        """The server-sent events that answer a request."""
        return parse_events(self.post(path, body | {"stream": True}).text)

    def lines(self, path: str, body: Any) -> list[Any]:
        """The lines of JSON that answer a request."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return [json.loads(line) for line in response.text.splitlines()]

    def named_events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The events that answer a request, where each has its type twice."""
        text = self.post(path, body | {"stream": True}).text
        found: list[dict[str, Any]] = []
        for entry in text.strip().split("\n\n"):
            name, _, data = entry.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}"
        return found

    def connect(self) -> socket.socket:
        port = int(self.url.rpartition(":")[2])
        return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def dial(self, path: str, body: Any) -> socket.socket:
        """Sends a request and leaves the connection open."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        connection = self.connect()
        connection.sendall(head.encode() + content)
        return connection

    def reset(self) -> None:
        """Forgets what earlier tests left in the caches and in the log."""
        self.worker.call(lambda engine: engine.reset())
        self.settle()
        self.log.clear()

    def wait_until_loaded(self) -> None:
        wait_until(lambda: self.get("/health").status_code == 200)

    def settle(self) -> None:
        """Returns once all earlier requests are done and counted."""
        scheduler = self.worker.scheduler
        wait_until(lambda: self.worker.call(lambda _: not (scheduler.waiting or scheduler.running)))
        self.get("/health")  # the event loop takes one thing after another


def parse_events(text: str) -> list[Any]:
    """The JSON of server-sent events; a final line that is not JSON stays text."""
    entries = (entry for entry in text.split("\n\n") if entry and not entry.startswith(":"))
    data = [entry.rpartition("data: ")[2] for entry in entries]
    return [json.loads(line) if line[0] in "{[" and line != "[DONE]" else line for line in data]


def serve(
    load: Callable[[], Engine],
    settings: ServerSettings | None = None,
    *,
    folder: Path = NOWHERE,
    wait_until_loaded: bool = True,
) -> AbstractContextManager[LiveServer]:
    """Serves one engine for ever, of a model that is called like its folder."""
    settings = replace(settings or ServerSettings(), keep_alive=math.inf)
    pool = Pool(lambda *_: load(), settings, [LocalModel(folder.name, folder)])
    return serve_pool(pool, wait_until_loaded=wait_until_loaded)


@contextmanager
def serve_pool(pool: Pool, *, wait_until_loaded: bool = True) -> Iterator[LiveServer]:
    """Serves the models of a pool."""
    server = HttpServer(create_app(pool))
    log = RequestLines()
    logger = logging.getLogger("akunu_py.server")
    logger.setLevel(logging.INFO)
    logger.addHandler(log)

    async def run(listener: socket.socket) -> None:
        pool.start()
        await server.serve([listener])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = Thread(target=lambda: uvloop.run(run(listener)), daemon=True)
        thread.start()
        try:
            with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
                live = LiveServer(url, pool, client, log)
                if wait_until_loaded:
                    live.wait_until_loaded()
                yield live
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            pool.close(PATIENCE_S)
            logger.removeHandler(log)


class HeldEngine:
    """Loads an engine whose forwards can be held."""

    def __init__(self, model: Path, **settings: Any) -> None:
        self._model = model
        self._settings = settings
        self._open = Flag()
        self._reached = Flag()
        self._left = -1

    def load(self) -> Engine:
        engine = akunu_py.load(akunu_py.ModelOptions(str(self._model), **self._settings))
        model: Any = engine.model
        model.forward = self._held(model.forward)
        model.forward_batch = self._held(model.forward_batch)
        return engine

    def _held(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def held_forward(*arguments: Any) -> Any:
            if self._left == 0:
                self._reached.set()
                assert self._open.wait(PATIENCE_S)
            self._left -= 1
            return forward(*arguments)

        return held_forward

    def hold(self, *, after: int) -> None:
        """Holds the engine after this many more forwards."""
        self._open.clear()
        self._reached.clear()
        self._left = after

    def wait_until_held(self) -> None:
        assert self._reached.wait(PATIENCE_S)

    def release(self) -> None:
        self._open.set()
