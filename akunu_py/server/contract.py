"""Contract: the endpoints that one family of clients calls, and the form of its errors.

An endpoint's handler is a function from an `ApiRequest` to a response. It knows neither ASGI nor
disconnects; see `app.py` and `middleware.py`. It reads the request; the engine's work begins when
the response is sent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.errors import ApiError
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.server.response_store import ResponseStore


@dataclass(frozen=True)
class ApiRequest:
    """One request, as a handler sees it. The body of a GET is empty. The `responses` are those that
    clients may continue."""

    service: Service
    settings: ServerSettings
    body: Body
    path_params: Mapping[str, str]
    query: Mapping[str, str]
    responses: "ResponseStore"

    @property
    def engine(self) -> "Engine":
        """The engine; see `Service.engine` for the errors."""
        return self.service.engine

    @property
    def model_name(self) -> str:
        """The model's name for clients."""
        return self.settings.aliases[0] if self.settings.aliases else self.engine.model.name


@dataclass(frozen=True)
class Endpoint:
    """A method and a path, and the handler that makes the response or raises an error.

    Attributes:
        path: the path, in Starlette's notation.
        is_open: whether it needs no API key.
        is_polled: whether clients call it all the time, so that its log lines are for debugging
            only.
    """

    method: str
    path: str
    handler: Callable[[ApiRequest], Response]
    is_open: bool = False
    is_polled: bool = False


def refuse_embeddings(_: ApiRequest) -> Response:
    """Says what to use instead of an endpoint for embeddings or ranking.

    Raises:
        ApiError: always.
    """
    raise ApiError(
        HTTPStatus.NOT_IMPLEMENTED,
        "This server generates text and has no embeddings or ranking; use a server with an "
        "embedding model for them, such as llama-server --embedding.",
        "not_supported_error",
    )


def refuse_disabled(_: ApiRequest) -> Response:
    """Says why an endpoint does not answer; llama-server has this status for it.

    Raises:
        ApiError: always.
    """
    sentence = "This server was started without it; see --disable."
    raise ApiError(HTTPStatus.NOT_IMPLEMENTED, sentence, "not_supported_error")


@dataclass(frozen=True)
class Contract:
    """What one family of clients relies on. `error_body` makes the JSON object that reports an
    error, also at unknown paths that begin with one of the `prefixes`."""

    name: str
    endpoints: tuple[Endpoint, ...]
    error_body: Callable[[ApiError], dict[str, Any]]
    prefixes: tuple[str, ...] = ()
