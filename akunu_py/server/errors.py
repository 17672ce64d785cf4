"""Every way a request can fail, as a fault: a status, a sentence and a kind; its JSON is the
contract's.

Nothing of the server's inside ever reaches a client: what is not an `AkunuError` is a 500 in
general words, and its details are in the log.
"""

import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException

from akunu_py.errors import AkunuError, ContextOverflowError, InvalidRequestError

RETRY_AFTER_S: Final = 1

_INVALID: Final = "invalid_request_error"

logger = logging.getLogger(__name__)


class BodyError(InvalidRequestError):
    """A body that is no JSON object, or has a field of a wrong type or range.

    Attributes:
        field: the name of the field at fault; None where it is the whole body.
    """

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class ServerError(AkunuError):
    """What the server refuses for reasons of its own, with the status that says so."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error"


class LoadingError(ServerError):
    """The model is not there yet."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    kind = "unavailable_error"


class ShuttingDownError(ServerError):
    """The server is about to end."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    kind = "unavailable_error"


class QueueFullError(ServerError):
    """More requests wait than may."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    kind = "rate_limit_error"


class SupersededError(ServerError):
    """A newer request for the same slot has taken its place."""

    status = HTTPStatus.CONFLICT
    kind = "superseded_error"


class BodyTooLargeError(ServerError):
    """The body is larger than the server reads."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    kind = "invalid_request_error"


class ApiKeyError(ServerError):
    """The API key is missing or wrong."""

    status = HTTPStatus.UNAUTHORIZED
    kind = "authentication_error"


class ForbiddenError(ServerError):
    """The request comes from where none is expected."""

    status = HTTPStatus.FORBIDDEN
    kind = "permission_error"


@dataclass(frozen=True)
class Fault:
    """What a client is told about a failure.

    Attributes:
        status: the HTTP status.
        message: one sentence.
        kind: llama-server's and OpenAI's `type`.
        param: the field at fault, if it is one.
        headers: that go with it.
    """

    status: int
    message: str
    kind: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def fault_of(error: Exception) -> Fault:
    """What a client is told about an error; what nobody foresaw is logged."""
    if isinstance(error, ServerError):
        retry = {"Retry-After": str(RETRY_AFTER_S)}
        headers = retry if isinstance(error, QueueFullError | LoadingError) else {}
        return Fault(error.status, str(error), error.kind, headers=headers)
    if isinstance(error, HTTPException):
        kind = "not_found_error" if error.status_code == HTTPStatus.NOT_FOUND else _INVALID
        return Fault(error.status_code, error.detail, kind, headers=dict(error.headers or {}))
    if isinstance(error, ContextOverflowError):
        return Fault(HTTPStatus.BAD_REQUEST, str(error), "exceed_context_size_error")
    if isinstance(error, InvalidRequestError):
        param = error.field if isinstance(error, BodyError) else None
        return Fault(HTTPStatus.BAD_REQUEST, str(error), _INVALID, param)
    if isinstance(error, AkunuError):
        return Fault(HTTPStatus.INTERNAL_SERVER_ERROR, str(error), "server_error")
    logger.error("a request failed: %s: %s", type(error).__name__, error)
    logger.debug("it failed here:", exc_info=error)
    return Fault(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The engine failed on this request; the server's log says how.",
        "server_error",
    )
