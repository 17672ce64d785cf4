"""The web application: every contract's endpoints, behind what all requests pass through."""

from collections.abc import Sequence
from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Scope

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.connection import Faults, Presence, RequestLog
from akunu_py.server.contract import Contract
from akunu_py.server.contracts import CONTRACTS
from akunu_py.server.errors import Fault, note_fault
from akunu_py.server.routes import make_router
from akunu_py.server.security import Gate
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings

_METHODS: Final = ("GET", "POST")


def create_app(
    service: Service, settings: ServerSettings, contracts: Sequence[Contract] = CONTRACTS
) -> ASGIApp:
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

    endpoints = [endpoint for contract in contracts for endpoint in contract.endpoints]
    open_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_open)
    polled_paths = frozenset(endpoint.path for endpoint in endpoints if endpoint.is_polled)
    app: ASGIApp = make_router(endpoints, service, settings)
    app = Presence(app, settings.limits.body_bytes)
    app = Gate(app, settings, open_paths)
    app = Faults(app, respond)
    if settings.origins:
        app = _cors(app, settings)
    return RequestLog(app, polled_paths)


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


def _cors(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=settings.origins,
        allow_methods=_METHODS,
        allow_headers=["authorization", "content-type", "x-api-key"],
    )
