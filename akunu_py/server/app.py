"""The web application: every contract's endpoints, behind what all requests pass through."""

from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from akunu_py.server.body import Body
from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.connection import Faults, Presence, RequestLog
from akunu_py.server.contract import Call, Contract, Endpoint
from akunu_py.server.contracts import CONTRACTS
from akunu_py.server.errors import Fault, fault_of_route, note_fault
from akunu_py.server.security import Gate
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings

_METHODS: Final = ("GET", "POST")


def create_app(
    service: Service, settings: ServerSettings, contracts: Sequence[Contract] = CONTRACTS
) -> Starlette:
    """Makes the application.

    Args:
        service: does the work.
        settings: of the server.
        contracts: what it speaks; the first one also answers for paths that are nobody's.
    """

    def respond(scope: Scope, fault: Fault) -> Response:
        note_fault(scope, fault)
        body = _contract_of(scope["path"], contracts).error_body(fault)
        return CompactJSONResponse(body, fault.status, fault.headers)

    def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return respond(request.scope, fault_of_route(request.url.path, request.method, error))

    endpoints = [endpoint for contract in contracts for endpoint in contract.endpoints]
    open_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open)
    polled_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_polled)
    middleware = [
        Middleware(RequestLog, polled_paths),
        *_cors(settings),
        Middleware(Faults, respond),
        Middleware(Gate, settings, open_paths),
        Middleware(Presence, settings.limits.body_bytes),
    ]
    app = Starlette(
        routes=[_route(endpoint, service, settings) for endpoint in endpoints],
        middleware=middleware,
        exception_handlers={HTTPException: refuse},
    )
    app.router.redirect_slashes = False  # a redirected POST is a surprise to most clients
    return app


def _route(endpoint: Endpoint, service: Service, settings: ServerSettings) -> Route:
    async def answer(request: Request) -> Response:
        raw = await request.body()
        body = Body.parse(raw if request.method == "POST" else b"", settings.limits)
        return await endpoint.answer(Call(service, settings, body, request))

    return Route(endpoint.path, answer, methods=[endpoint.method])


def _contract_of(path: str, contracts: Sequence[Contract]) -> Contract:
    """Whose errors a path has: its contract's, or the one's with the longest prefix of it."""
    for contract in contracts:
        if any(endpoint.path == path for endpoint in contract.endpoints):
            return contract
    lengths = {
        contract: len(prefix)
        for contract in contracts
        for prefix in contract.prefixes
        if path.startswith(prefix)
    }
    return max(lengths, key=lambda contract: lengths[contract], default=contracts[0])


def _cors(settings: ServerSettings) -> list[Middleware]:
    if not settings.origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=_METHODS,
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    ]
