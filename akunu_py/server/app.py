"""The web application: the endpoints of all contracts, behind the middleware."""

import asyncio
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from akunu_py.server.anthropic import ANTHROPIC
from akunu_py.server.body import Body
from akunu_py.server.contract import Contract, Endpoint, refuse_disabled
from akunu_py.server.errors import ApiError, NotFoundError
from akunu_py.server.llama import LLAMA
from akunu_py.server.middleware import (
    BODY,
    AccessMiddleware,
    DisconnectMiddleware,
    RequestLog,
    allow_pages,
)
from akunu_py.server.monitor import MONITOR, PAGE
from akunu_py.server.ollama import OLLAMA
from akunu_py.server.openai import MODELS
from akunu_py.server.openai_chat import CHAT
from akunu_py.server.openai_completions import COMPLETIONS
from akunu_py.server.responses import RESPONSES
from akunu_py.server.service import Service

CONTRACTS: Final[tuple[Contract, ...]] = (
    LLAMA, MONITOR, ANTHROPIC, CHAT, COMPLETIONS, RESPONSES, MODELS, OLLAMA, PAGE,
)  # fmt: skip
"""The first contract also reports the errors of paths that belong to no contract."""


def create_app(service: Service) -> ASGIApp:
    """Makes the application. It expects HTTP requests only: no lifespan events, no websockets."""
    settings = service.settings
    endpoints = [
        replace(endpoint, handler=refuse_disabled)
        if endpoint.path[1:] in settings.disabled
        else endpoint
        for contract in CONTRACTS
        for endpoint in contract.endpoints
        if not (contract is PAGE and PAGE.name in settings.disabled)
    ]
    open_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open)
    polled_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_polled)
    paths: dict[str, _Path] = {}
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.path, _Path(service))
        path.endpoints[endpoint.method] = endpoint
    app: ASGIApp = Router(
        [Route(path, handler) for path, handler in paths.items()],
        redirect_slashes=False,  # most clients do not follow a redirected POST
        default=_not_found,
    )
    app = DisconnectMiddleware(app, settings.limits)
    app = AccessMiddleware(app, settings, open_paths)
    app = RequestLog(app, lambda path: _contract_of(path).error_body, polled_paths)
    return allow_pages(app, settings.origins) if settings.origins else app


def _contract_of(path: str) -> Contract:
    """The contract that reports the errors of a path: the one that serves it, or else one that has
    a prefix of it."""
    for contract in CONTRACTS:
        if any(endpoint.path == path for endpoint in contract.endpoints):
            return contract
    for contract in CONTRACTS:
        if path.startswith(contract.prefixes):
            return contract
    return CONTRACTS[0]


_QUICKLY_READ: Final = 1 << 15
"""Bytes of a body that is read on the event loop. Reading a longer one, which takes longer than
waking a thread, must not make other requests wait."""


class _Path:
    """Calls the handler for one path.

    It is an ASGI application rather than a function of a request, because Starlette wraps `send`
    once more for a function, and every streamed token passes through all wrappers.
    """

    def __init__(self, service: Service) -> None:
        self.endpoints: dict[str, Endpoint] = {}  # by their methods
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, raw = scope["method"], scope.pop(BODY)
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            allowed = ", ".join(self.endpoints)
            raise ApiError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{scope['path']} takes {allowed}, not {method}.",
                headers={"Allow": allowed},
            )
        if method != "POST":
            path = Body(scope["path_params"], self._service.settings.limits)
            response = endpoint.handler(self._service, path)
        elif len(raw) > _QUICKLY_READ:
            response = await asyncio.to_thread(self._answer, endpoint, raw)
        else:
            response = self._answer(endpoint, raw)
        del raw
        await response(scope, receive, send)

    def _answer(self, endpoint: Endpoint, raw: bytes) -> Response:
        body = Body.parse(raw, self._service.settings.limits)
        return endpoint.handler(self._service, body)


async def _not_found(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFoundError(f"Nothing is served at {scope['path']}.")
