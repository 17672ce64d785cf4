"""`serve`: runs the completion backend until SIGINT or SIGTERM."""

import asyncio
import errno
import gc
import ipaddress
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Final

import uvloop

from akunu_py.cli.loading import fetch_model, load_engine
from akunu_py.cli.settings import ServeSettings
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend, launched_rank
from akunu_py.machine.device_memory import bound_kept_memory, free_device_bytes
from akunu_py.model.library import LocalModel, check_folders, local_models, matches
from akunu_py.options import BUNDLED_MODEL, ModelOptions, Options

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.server.pool import Pool
    from akunu_py.server.service import Service

logger = logging.getLogger("akunu_py.server")

_BACKLOG: Final = 128
_CACHE_SHARE: Final = 4
"""A model's caches may take one part in this many of the free memory, as without --memory."""
_LOG_BYTES: Final = 1 << 20
_SECONDS_TO_STOP: Final = 2.0
_SECONDS_TO_SAVE: Final = 20.0
"""How long the current forward pass may take before prompts are saved."""


def run(settings: ServeSettings) -> int:
    """Listens immediately, and answers as soon as a model is loaded."""
    from akunu_py.server.models import is_fetching  # noqa: PLC0415
    from akunu_py.server.pool import Pool  # noqa: PLC0415

    try:
        log = LogFile(settings.log_file) if settings.log_file else logging.StreamHandler(sys.stderr)
    except OSError as error:
        raise InvalidRequestError(f"The log cannot be kept ({error}); check --log-file.") from None
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", handlers=[log])
    logging.getLogger("akunu_py").setLevel(settings.log_level)
    bound_kept_memory()
    has_key = settings.server.key is not None  # raises here if the key cannot be read
    first = []
    folders = settings.server.models_dirs
    check_folders(folders)
    offered = [model for model in local_models(folders) if model.place == "folder"]
    for name in settings.models or (BUNDLED_MODEL,):
        named = [] if name == BUNDLED_MODEL else matches(offered, name)
        if len(named) != 1:
            fetch_model(replace(settings.model, name=name))
            named = [LocalModel.named(name)]
        first.append(model := named[0])
        if any(model.name == other.name for other in first[:-1]):
            raise InvalidRequestError(f"Two models are called {model.name}; rename one folder.")
    server = settings.server
    others: Callable[[], Iterable[LocalModel]] = partial(local_models, folders)
    if launched_rank() is not None:  # the other ranks compute for this model alone
        if len(first) > 1:
            raise InvalidRequestError("Several ranks serve one model; name one with --model.")
        server, others = replace(server, keep_alive=math.inf), tuple
    load, memory = partial(_load, settings, first), partial(_memory, settings)
    pool = Pool(load, server, first, others=others, memory=memory)
    pool.check_aliases()
    with ExitStack() as stack:
        listeners = _listen(server.host, server.port)
        for listener in listeners:
            stack.enter_context(listener)
        try:
            uvloop.run(_serve(pool, settings, listeners, has_key))
        finally:
            saves = settings.model.prompt_cache_dir is not None and bool(pool.services)
            pool.close(_SECONDS_TO_SAVE if saves else _SECONDS_TO_STOP)
    if is_fetching():  # Python would wait for the hub library's threads; a later pull resumes
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    return 0


class LogFile(RotatingFileHandler):
    """A log file that only the user can read, and the previous one; standard output and error go
    there too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        opener = partial(os.open, mode=0o600)
        file = open(self.baseFilename, "a", encoding="utf-8", opener=opener)  # noqa: SIM115
        for number in (sys.stdout.fileno(), sys.stderr.fileno()):
            os.dup2(file.fileno(), number)
        return file


def _memory(settings: ServeSettings) -> int:
    find_backend()  # before MLX is imported
    return settings.server.memory or free_device_bytes()


def _load(
    settings: ServeSettings, first: Sequence[LocalModel], model: LocalModel, spare: int
) -> "Engine":
    """Loads the engine of a model and warms it up, because the first answer compiles kernels. The
    options that change how a model answers apply only to the models that the user named."""
    given = settings.model
    if model not in first:
        kept = ("weights", "no_wire", "prefill_step_size", "prompt_cache_bytes", "prompt_cache_dir",
                "remembers")  # fmt: skip
        given = ModelOptions(**{name: getattr(given, name) for name in kept})
    if settings.server.memory is not None and given.prompt_cache_bytes is None:
        given = replace(given, prompt_cache_bytes=max(0, spare) // _CACHE_SHARE)
    find_backend()  # before MLX is imported
    import akunu_py.loading  # noqa: F401, PLC0415

    if not gc.get_freeze_count():
        # Full garbage collections stall all threads, so they skip the libraries, but not what
        # belongs to a model, which may be unloaded.
        gc.collect()
        gc.freeze()
    engine = load_engine(replace(given, name=model.asked))
    defaults = settings.server.defaults
    drafter = "none" if model.modules else defaults.drafter  # otherwise costs are measured
    options = Options(max_tokens=2, drafter=drafter, num_draft_tokens=defaults.num_draft_tokens)
    prompt = engine.tokenizer.encode("\n")[-1:] * engine.backend.warm_up_tokens
    engine.generate(prompt[: max(1, engine.context_limit // 2)], options)
    engine.reset()
    return engine


async def _serve(
    pool: "Pool", settings: ServeSettings, listeners: list[socket.socket], has_key: bool
) -> None:
    """Serves until a signal comes; raises the error if one of the first models cannot be loaded."""
    from akunu_py.server.app import create_app  # noqa: PLC0415
    from akunu_py.server.http import HttpServer  # noqa: PLC0415

    server = HttpServer(create_app(pool))
    loop = asyncio.get_running_loop()

    def stop() -> None:
        pool.stop()
        server.should_exit = True

    def loaded(loading: "asyncio.Future[list[Service]]") -> None:
        if loading.cancelled() or loading.exception() is not None:
            stop()
        else:
            tell_ready(loading.result(), where, settings.server.parallel)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    names = [listener.getsockname()[:2] for listener in listeners]
    urls = [f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            for host, port in names]  # fmt: skip
    where = f"{', '.join(settings.models or (BUNDLED_MODEL,))} at {' and '.join(urls)}"
    print(f"Loading {where}", flush=True)
    is_open = not all(ipaddress.ip_address(host).is_loopback for host, _ in names)
    if not has_key and is_open:
        logger.warning("anyone who can reach this address can use the server; see --api-key-file")
    loading = pool.start()
    loading.add_done_callback(loaded)
    await server.serve(listeners)
    if loading.done() and isinstance(error := loading.exception(), Exception):
        raise error


def tell_ready(services: "Iterable[Service]", where: str, wanted: int) -> None:
    """Prints what is served and how many requests at a time, and why if fewer than wanted."""
    print(f"Serving {where}")
    for service in services:
        for notice in service.engine.notices:
            logger.warning("%s", notice)
        parallel, why = service.worker.scheduler.parallel, service.why_in_turns
        how = f"Up to {parallel} requests are answered at a time"
        if parallel == 1:
            how = "Requests are answered one after another"
        if parallel < wanted:
            how += f", not {wanted}: more caches would not fit, see --prompt-cache-bytes"
        print(f"{how}. {why}" if why else f"{how}.", flush=True)


def _listen(hosts: str, port: int) -> list[socket.socket]:
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
        return f"Port {port} on {host} is in use; choose another one with --port."
    if isinstance(error, OSError) and error.errno == errno.EACCES:
        return f"You may not listen on port {port}; choose one above 1023 with --port."
    return f"Cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}."
