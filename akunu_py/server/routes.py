"""Routes: from a request's path and method to the endpoint that answers it.

What is at a path is called as an ASGI application, and not through Starlette's functions of a
request: those wrap `send` once more, and every streamed token passes through all that wraps it.
"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from akunu_py.server.body import Body
from akunu_py.server.contract import Call, Endpoint
from akunu_py.server.errors import MethodError, NotFoundError
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings


def make_router(
    endpoints: Iterable[Endpoint], service: Service, settings: ServerSettings
) -> Router:
    """What answers requests; a path or a method that is nobody's raises an `AkunuError`."""
    places: dict[str, _Place] = {}
    for endpoint in endpoints:
        place = places.setdefault(endpoint.path, _Place(service, settings))
        place.endpoints[endpoint.method] = endpoint
    return Router(
        [Route(path, place) for path, place in places.items()],
        redirect_slashes=False,  # a redirected POST is a surprise to most clients
        default=_nowhere,
    )


class _Place:
    """What answers at one path.

    Attributes:
        endpoints: by their methods.
    """

    def __init__(self, service: Service, settings: ServerSettings) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self._service = service
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        endpoint = self.endpoints.get("GET" if method == "HEAD" else method)
        if endpoint is None:
            raise MethodError(scope["path"], method, ", ".join(self.endpoints))
        request = Request(scope, receive)
        raw = await request.body() if method == "POST" else b""
        body = Body.parse(raw, self._settings.limits)
        response = await endpoint.answer(Call(self._service, self._settings, body, request))
        await response(scope, receive, send)


async def _nowhere(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise NotFoundError(f"Nothing is served at {scope['path']}.")
