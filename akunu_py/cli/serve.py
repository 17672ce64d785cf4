"""`serve`: runs the completion backend until SIGINT or SIGTERM."""

import asyncio
import errno
import gc
import ipaddress
import logging
import signal
import socket
import sys
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import uvloop

from akunu_py.cli.loading import fetch_model, load_engine
from akunu_py.cli.settings import ServeSettings
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.device_memory import share_arenas
from akunu_py.options import Options
from akunu_py.worker import EngineWorker

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.server.service import Service

logger = logging.getLogger("akunu_py.server")

_BACKLOG: Final = 128
_SECONDS_TO_STOP: Final = 2.0
_SECONDS_TO_SAVE: Final = 20.0
"""How long the current forward pass may take before prompts are saved."""


def run(settings: ServeSettings) -> int:
    """Listens immediately, and answers as soon as the model is loaded."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("akunu_py").setLevel(settings.log_level)
    share_arenas()
    has_key = settings.server.key is not None  # a key that cannot be read ends it here
    fetch_model(settings.model)
    with ExitStack() as stack:
        listeners = _listen(settings.server.host, settings.server.port)
        for listener in listeners:
            stack.enter_context(listener)
        server = settings.server
        worker = EngineWorker(
            lambda: _load(settings), queue_limit=server.queue, parallel=server.parallel
        )
        try:
            uvloop.run(_serve(worker, settings, listeners, has_key))
        finally:
            saves = settings.model.prompt_cache_dir is not None and worker.loading.done()
            worker.close(_SECONDS_TO_SAVE if saves else _SECONDS_TO_STOP)
    if worker.failed:
        worker.loading.result()
    return 0


def _load(settings: ServeSettings) -> "Engine":
    """Loads the engine and warms it up, because the first answer compiles."""
    engine = load_engine(settings.model)
    defaults = settings.server.defaults
    options = Options(
        max_tokens=2, drafter=defaults.drafter, num_draft_tokens=defaults.num_draft_tokens
    )
    prompt = engine.tokenizer.encode("\n")[-1:] * engine.backend.warm_up_tokens
    engine.generate(prompt[: max(1, engine.context_limit // 2)], options)
    engine.reset()
    # What stays need not be searched again by each full collection, which stalls all threads.
    gc.collect()
    gc.freeze()
    return engine


async def _serve(
    worker: EngineWorker,
    settings: ServeSettings,
    listeners: list[socket.socket],
    has_key: bool,
) -> None:
    from akunu_py.server.app import create_app  # noqa: PLC0415
    from akunu_py.server.http import HttpServer  # noqa: PLC0415
    from akunu_py.server.service import Service  # noqa: PLC0415

    service = Service(worker, settings.server)
    server = HttpServer(create_app(service))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        service.stop()
        server.should_exit = True

    def loaded(loading: "Future[Engine]") -> None:
        with suppress(RuntimeError):  # the event loop is closed: a signal came during loading
            if loading.exception() is None:
                loop.call_soon_threadsafe(tell_ready, service, where, settings.server.parallel)
            else:
                loop.call_soon_threadsafe(stop)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    names = [listener.getsockname()[:2] for listener in listeners]
    urls = [f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            for host, port in names]  # fmt: skip
    where = f"{settings.model.name} at {' and '.join(urls)}"
    print(f"Loading {where}", flush=True)
    is_open = not all(ipaddress.ip_address(host).is_loopback for host, _ in names)
    if not has_key and is_open:
        logger.warning("everyone who can reach this address may use the server; see --api-key-file")
    worker.loading.add_done_callback(loaded)
    await server.serve(listeners)


def tell_ready(service: "Service", where: str, wanted: int) -> None:
    """Prints what is served, and how many requests at a time; if fewer than wanted, why."""
    for notice in service.engine.notices:
        logger.warning("%s", notice)
    print(f"Serving {where}")
    parallel, why = service.worker.scheduler.parallel, service.why_in_turns
    how = f"Up to {parallel} requests are answered at a time"
    if parallel == 1:
        how = "Requests are answered one after another"
    if parallel < wanted:
        how += f", not {wanted}: the caches of more would not fit, see --prompt-cache-bytes"
    print(f"{how}. {why}" if why else f"{how}.", flush=True)


def _listen(hosts: str, port: int) -> list[socket.socket]:
    """A listening socket for each host of a list with commas, all on one port."""
    listeners: list[socket.socket] = []
    for host in hosts.split(","):
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except (OSError, UnicodeError) as error:
            for listener in listeners:
                listener.close()
            raise InvalidRequestError(_why_not(host, port, error)) from error
        listeners.append(listener)
        port = listener.getsockname()[1]
    return listeners


def _why_not(host: str, port: int, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use; name another one with --port."
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"This user may not listen on port {port}; name one above 1023 with --port."
    return f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}."
