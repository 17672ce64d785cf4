"""The web application: the endpoints of all APIs, behind the middleware, and the pages for
browsers: a chat at `/`, and at `/status` the figures of `/status.json`.

Each page is a file of HTML, with its scripts and styles under `/static/`. They contain no secret,
so they need no API key; what they ask the server for does. Their Content-Security-Policy allows
these files and requests to this server only, and lets no script make HTML of text.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from threading import Event
from time import perf_counter
from typing import Any, Final

from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from akunu_py.errors import AkunuError, ModelLoadError
from akunu_py.server import (
    anthropic,
    edits,
    llama,
    models,
    monitor,
    ollama,
    openai,
    openai_chat,
    responses,
)
from akunu_py.server.body import MAX_PATH, Body, read_keep_alive
from akunu_py.server.errors import (
    ApiError,
    NotFoundError,
    UnavailableError,
    load_error,
    noted_error,
)
from akunu_py.server.grammars import GRAMMAR_FIELDS
from akunu_py.server.middleware import (
    BODY,
    MODEL,
    RELEASE,
    AccessMiddleware,
    DisconnectMiddleware,
    RequestLog,
    allow_pages,
)
from akunu_py.server.pool import Pool, Seat
from akunu_py.server.service import SHUTTING_DOWN, Service
from akunu_py.server.short_first import ShortFirst
from akunu_py.server.wire import (
    CHUNK,
    ERRORS_COME_S,
    LOAD_S,
    SILENCE_S,
    STATUS,
    Answer,
    Endpoint,
    PoolEndpoint,
    start_stream,
)
from akunu_py.text.sandbox import CLIENT_LEFT


@dataclass(frozen=True)
class Contract:
    """The API that one family of clients relies on. `error_body` makes the JSON object for an
    error, also at unknown paths that begin with `prefix`. `report` makes the event for an error in
    a stream, if streams may have comments."""

    endpoints: tuple[Endpoint, ...]
    error_body: Callable[[ApiError], dict[str, Any]]
    prefix: str = ""
    report: Callable[[ApiError], bytes] | None = None


_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_PARTS: Final = (
    "theme.css", "theme.js", "server.js", "chat.css", "chat.js", "markdown.js", "status.css",
    "status.js",
)  # fmt: skip


def _serve(name: str, _pool: Pool, _body: Body) -> Response:
    content = files(__package__).joinpath("static", name).read_bytes()
    headers = {"Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
    if name.endswith(".html"):
        headers["Content-Security-Policy"] = _POLICY
    return Answer(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


def _page(path: str, name: str) -> PoolEndpoint:
    return PoolEndpoint("GET", path, partial(_serve, name), is_open=True)


_PAGES: Final = (
    _page("/", "chat.html"),
    _page("/status", "status.html"),
    *(_page(f"/static/{name}", name) for name in _PARTS),
    monitor.STATUS,
)

CONTRACTS: Final = (
    Contract(anthropic.ENDPOINTS, anthropic.error_body, "/v1/messages", anthropic.report),
    Contract(responses.ENDPOINTS, openai.error_body, "/v1/responses", responses.report),
    Contract(
        (*openai_chat.ENDPOINTS, *openai.ENDPOINTS, *edits.ENDPOINTS, *models.OPENAI),
        openai.error_body,
        "/v1/",
        openai.report,
    ),
    Contract(models.LM_STUDIO, openai.error_body, "/api/v0/"),
    Contract((*ollama.ENDPOINTS, *models.OLLAMA), ollama.error_body, "/api/"),
    Contract(
        (*llama.ENDPOINTS, *monitor.ENDPOINTS, *_PAGES), llama.error_body, report=llama.report
    ),
)
"""The first contract that serves a path, or else has a prefix of it, reports the errors there."""


def create_app(pool: Pool) -> ASGIApp:
    """Makes the application. It expects only HTTP requests: no lifespan events, no websockets."""
    settings = pool.settings
    paths: dict[str, _Path] = {}
    threads, readers = ThreadPoolExecutor(_GRAMMAR_THREADS), ShortFirst()
    for contract in CONTRACTS:
        for endpoint in contract.endpoints:
            if endpoint in _PAGES and "page" in settings.disabled:
                continue
            path = paths.setdefault(endpoint.path, _Path(pool, threads, readers, contract.report))
            path.endpoints[endpoint.method] = (
                PoolEndpoint(endpoint.method, endpoint.path, _refuse_disabled)
                if endpoint.path[1:] in settings.disabled
                else endpoint
            )
    endpoints = [each for path in paths.values() for each in path.endpoints.values()]
    routes = [Route(path, handler) for path, handler in paths.items()]

    def shown(path: str) -> str:
        return next((route.path for route in routes if route.path_regex.match(path)), "(unknown)")

    app: ASGIApp = Router(
        routes,
        redirect_slashes=False,  # most clients do not follow a redirected POST
        default=_not_found,
    )
    app = DisconnectMiddleware(app, settings)
    is_open = {each.path for each in endpoints if each.is_open}
    loads = {each.path for each in endpoints if not isinstance(each, PoolEndpoint)}
    app = AccessMiddleware(app, settings, is_open, loads)
    app = RequestLog(app, _error_form, shown)
    return allow_pages(app, settings.origins)


def _error_form(path: str) -> Callable[[ApiError], dict[str, Any]]:
    for contract in CONTRACTS:
        if any(endpoint.path == path for endpoint in contract.endpoints):
            return contract.error_body
    return next(each for each in CONTRACTS if path.startswith(each.prefix)).error_body


_QUICKLY_READ: Final = 1 << 14
"""The most bytes of a body that is read on the event loop. Reading a longer one takes longer than
waking a thread, and other requests must not wait for it."""
_FEW_COMMAS: Final = 512
"""The most commas of such a body: each may follow a text that is encoded on its own."""
_WITH_BODY: Final = ("POST", "DELETE")
_OLLAMA: Final = "/api/"
_GRAMMAR_THREADS: Final = 80
"""More than may wait for the grammar process, so that known grammars never wait."""


class _Path:
    """An ASGI application rather than a function of a request, because Starlette wraps `send` once
    more for a function, and every streamed token passes through all wrappers."""

    def __init__(
        self,
        pool: Pool,
        threads: ThreadPoolExecutor,
        readers: ShortFirst,
        report: Callable[[ApiError], bytes] | None,
    ) -> None:
        self.endpoints: dict[str, Endpoint] = {}  # by their methods
        self._pool = pool
        self._threads = threads
        self._readers = readers
        self._report = report

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, raw = scope["method"], scope.pop(BODY)
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(self.endpoints)
            raise ApiError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{scope['path']} takes {allowed}, not {method}.",
                headers={"Allow": allowed},
                quotes=True,
            )
        raw = raw if method in _WITH_BODY else b""
        place = self._readers.place(len(raw))
        is_long = len(raw) > _QUICKLY_READ or raw.count(b",") > _FEW_COMMAS
        is_long = is_long or any(one.is_encoding for one in self._pool.services)
        if not raw:
            if len(scope["query_string"]) > MAX_PATH:
                sentence = f"The query after the path is longer than {MAX_PATH} bytes."
                raise ApiError(HTTPStatus.REQUEST_URI_TOO_LONG, sentence)
            query = QueryParams(scope["query_string"])
            body = Body({"model": query["model"]} if "model" in query else {})
        else:
            parse = partial(Body.parse, raw)
            body = await self._readers.run(place, parse) if is_long else parse()
            del parse
        del raw
        if isinstance(endpoint, PoolEndpoint):
            body = body if method in _WITH_BODY else Body(scope["path_params"])
            handle = partial(endpoint.handler, self._pool, body)
            response = await self._readers.run(place, handle) if endpoint.is_slow else handle()
            await response(scope, receive, send)
            return
        named = ("model", "name") if endpoint.path.startswith(_OLLAMA) else ("model",)
        asked = body.text(*named, default="", longest=MAX_PATH)
        async with self._pool.using(asked, read_keep_alive(body), endpoint.check) as seat:
            scope[MODEL] = seat.model.name
            try:
                streams = endpoint.needs == "completion" and body.any("stream") is True
                service = await self._wait(seat, scope, send, streams=streams)
                slow_place = place if is_long or endpoint.is_slow else None
                response = await self._answer(endpoint, service, body, slow_place)
            except Exception as error:
                if STATUS not in scope or self._report is None:
                    raise
                chunk = self._report(noted_error(scope, error))
                await send({"type": CHUNK, "body": chunk})
                return
            scope[RELEASE](getattr(response, "kept_bytes", 0))
            del body
            await response(scope, receive, send)

    async def _wait(self, seat: Seat, scope: Scope, send: Send, *, streams: bool) -> Service:
        """A stream begins during the wait; comments keep it alive."""
        loading = seat.loading
        assert loading is not None, "a seat that is used is not unloaded"
        begun, patience = perf_counter(), ERRORS_COME_S if self._report and streams else None
        while patience and not (await asyncio.wait((loading,), timeout=patience))[0]:
            if STATUS not in scope:
                await start_stream(scope, send)
            told = b": loading %s\n\n" % ascii(seat.model.name)[1:-1].encode()
            await send({"type": CHUNK, "body": told, "more_body": True})
            patience = SILENCE_S
        try:
            service = await asyncio.shield(loading)
            LOAD_S.set(perf_counter() - begun)
            return service
        except asyncio.CancelledError:
            if loading.cancelled():
                raise UnavailableError(SHUTTING_DOWN) from None
            raise
        except ModelLoadError as error:
            raise load_error(error, seat.model) from error

    async def _answer(
        self, endpoint: Endpoint, service: Service, body: Body, slow_place: float | None
    ) -> Response:
        """`slow_place`: the place in line of a request that takes long to read."""
        handle = partial(endpoint.handler, service, body)
        if not body.has(*GRAMMAR_FIELDS):
            if slow_place is not None:
                return await self._readers.run(slow_place, handle)
            return handle()
        left = Event()
        CLIENT_LEFT.set(left)
        try:
            service.trials.add(left)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, copy_context().run, handle)
        except AkunuError:
            service.check_stopping()
            raise
        finally:
            service.trials.discard(left)
            left.set()


async def _not_found(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFoundError(f"Nothing is served at {scope['path']}.", quotes=True)


def _refuse_disabled(_pool: Pool, _body: Body) -> Response:
    sentence = "This is disabled on this server; see --disable."
    raise ApiError(HTTPStatus.NOT_IMPLEMENTED, sentence, "not_supported_error")
