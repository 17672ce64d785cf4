"""The web application: the endpoints of all contracts, behind the middleware."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from threading import Event
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from akunu_py.errors import AkunuError
from akunu_py.server import (
    anthropic,
    edits,
    llama,
    monitor,
    ollama,
    openai,
    openai_chat,
    pages,
    responses,
)
from akunu_py.server.body import Body
from akunu_py.server.dialect import GRAMMAR_FIELDS
from akunu_py.server.errors import ApiError, NotFoundError
from akunu_py.server.middleware import (
    BODY,
    RELEASE,
    AccessMiddleware,
    DisconnectMiddleware,
    RequestLog,
    allow_pages,
)
from akunu_py.server.service import Service
from akunu_py.server.wire import Endpoint
from akunu_py.text.trial import CLIENT_LEFT


@dataclass(frozen=True)
class Contract:
    """What one family of clients relies on. `error_body` makes the JSON object for an error, also
    at unknown paths that begin with `prefix`."""

    endpoints: tuple[Endpoint, ...]
    error_body: Callable[[ApiError], dict[str, Any]]
    prefix: str = ""


_PAGES: Final = (*pages.ENDPOINTS, monitor.STATUS)

CONTRACTS: Final = (
    Contract(anthropic.ENDPOINTS, anthropic.error_body, "/v1/messages"),
    Contract(
        (
            *openai_chat.ENDPOINTS,
            *responses.ENDPOINTS,
            *openai.ENDPOINTS,
            *edits.ENDPOINTS,
        ),
        openai.error_body,
        "/v1/",
    ),
    Contract(ollama.ENDPOINTS, ollama.error_body, "/api/"),
    Contract((*llama.ENDPOINTS, *monitor.ENDPOINTS, *_PAGES), llama.error_body),
)
"""The first contract that serves a path, or else has a prefix of it, reports its errors."""


def create_app(service: Service) -> ASGIApp:
    """Makes the application. It expects HTTP requests only: no lifespan events, no websockets."""
    settings = service.settings
    paths: dict[str, _Path] = {}
    threads = ThreadPoolExecutor(_GRAMMAR_THREADS)
    endpoints = [
        replace(endpoint, handler=_refuse_disabled)
        if endpoint.path[1:] in settings.disabled
        else endpoint
        for contract in CONTRACTS
        for endpoint in contract.endpoints
        if not (endpoint in _PAGES and "page" in settings.disabled)
    ]
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.path, _Path(service, threads))
        path.endpoints[endpoint.method] = endpoint
    routes = [Route(path, handler) for path, handler in paths.items()]

    def shown(path: str) -> str:
        return next((route.path for route in routes if route.path_regex.match(path)), path)

    app: ASGIApp = Router(
        routes,
        redirect_slashes=False,  # most clients do not follow a redirected POST
        default=_not_found,
    )
    app = DisconnectMiddleware(app, settings)
    app = AccessMiddleware(app, settings, {each.path for each in endpoints if each.is_open})
    app = RequestLog(app, _error_form, shown)
    return allow_pages(app, settings.origins)


def _error_form(path: str) -> Callable[[ApiError], dict[str, Any]]:
    for contract in CONTRACTS:
        if any(endpoint.path == path for endpoint in contract.endpoints):
            return contract.error_body
    return next(each for each in CONTRACTS if path.startswith(each.prefix)).error_body


_QUICKLY_READ: Final = 1 << 14
"""Bytes of a body that is read on the event loop. Reading a longer one, which takes longer than
waking a thread, must not make other requests wait."""
_GRAMMAR_THREADS: Final = 80
"""More than may wait for the process of grammars, so that known grammars never do."""


class _Path:
    """Calls the handler for one path.

    It is an ASGI application rather than a function of a request, because Starlette wraps `send`
    once more for a function, and every streamed token passes through all wrappers.
    """

    def __init__(self, service: Service, threads: ThreadPoolExecutor) -> None:
        self.endpoints: dict[str, Endpoint] = {}  # by their methods
        self._service = service
        self._threads = threads

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
        if method != "POST":
            response = endpoint.handler(self._service, Body(scope["path_params"]))
        else:
            response = await self._answer(endpoint, raw)
            scope[RELEASE](getattr(response, "kept_bytes", 0))
        del raw
        await response(scope, receive, send)

    async def _answer(self, endpoint: Endpoint, raw: bytes) -> Response:
        is_long = len(raw) > _QUICKLY_READ or self._service.is_encoding
        body = await asyncio.to_thread(Body.parse, raw) if is_long else Body.parse(raw)
        handle = partial(endpoint.handler, self._service, body)
        if not body.has(*GRAMMAR_FIELDS):
            return await asyncio.to_thread(handle) if is_long else handle()
        left = Event()
        CLIENT_LEFT.set(left)
        try:
            self._service.trials.add(left)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, copy_context().run, handle)
        except AkunuError:
            self._service.check_stopping()
            raise
        finally:
            self._service.trials.discard(left)
            left.set()


async def _not_found(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFoundError(f"Nothing is served at {scope['path']}.")


def _refuse_disabled(_service: Service, _body: Body) -> Response:
    sentence = "This server was started without it; see --disable."
    raise ApiError(HTTPStatus.NOT_IMPLEMENTED, sentence, "not_supported_error")
