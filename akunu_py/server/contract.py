"""Contract: the endpoints that one family of clients calls, and the form of its errors.

A handler takes the service and the request's body, and returns a response or raises an error. It
knows neither ASGI nor disconnects. The engine's work begins when the response is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.errors import ApiError
from akunu_py.server.service import Service


@dataclass(frozen=True)
class Endpoint:
    """A method and a path, in Starlette's notation, and what handles them.

    Attributes:
        handler: gets the body of a POST, or the parameters in the path of another request.
        is_open: whether it needs no API key.
        is_polled: whether clients call it all the time, so that the log shows it only for
            debugging.
    """

    method: str
    path: str
    handler: Callable[[Service, Body], Response]
    is_open: bool = False
    is_polled: bool = False


@dataclass(frozen=True)
class Contract:
    """What one family of clients relies on. `error_body` makes the JSON object for an error, also
    at unknown paths that begin with one of the `prefixes`."""

    name: str
    endpoints: tuple[Endpoint, ...]
    error_body: Callable[[ApiError], dict[str, Any]]
    prefixes: tuple[str, ...] = ()


def refuse_embeddings(_service: Service, _body: Body) -> Response:
    """Says what to use instead of an endpoint for embeddings or ranking."""
    raise ApiError(
        HTTPStatus.NOT_IMPLEMENTED,
        "This server generates text and has no embeddings or ranking; use a server with an "
        "embedding model for them, such as llama-server --embedding.",
        "not_supported_error",
    )


def refuse_disabled(_service: Service, _body: Body) -> Response:
    """Says why an endpoint does not answer, with llama-server's status."""
    sentence = "This server was started without it; see --disable."
    raise ApiError(HTTPStatus.NOT_IMPLEMENTED, sentence, "not_supported_error")
