"""Every way a request can fail, as a fault: a status, a sentence and a kind; its JSON is the
contract's.

Nothing of the server's inside ever reaches a client: what is not an `AkunuError` is a 500 in
general words, and its details are in the log.
"""

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from akunu_py.errors import (
    AkunuError,
    ContextOverflowError,
    EngineClosedError,
    InvalidRequestError,
    QueueFullError,
)

logger = logging.getLogger(__name__)


class BodyError(InvalidRequestError):
    """A body that is no JSON object, or has a field of a wrong type or range.

    Attributes:
        field: the name of the field at fault; None where it is the whole body.
    """

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class BodyTooLargeError(AkunuError):
    """The body is larger than the server reads."""


class LoadingError(AkunuError):
    """The model is not there yet."""

    def __init__(self) -> None:
        super().__init__("Loading model")  # llama-server's words, which clients look for


class ShuttingDownError(AkunuError):
    """The server is about to end."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.")


class SupersededError(AkunuError):
    """A newer request of the same slot has taken its place."""

    def __init__(self) -> None:
        super().__init__("A newer request has taken the place of this one.")


class NotFoundError(AkunuError):
    """What is asked for is not here."""


class MethodError(AkunuError):
    """A path is asked by a method that it does not answer.

    Attributes:
        allowed: the methods that it does, as the Allow header has them.
    """

    def __init__(self, path: str, method: str, allowed: str) -> None:
        super().__init__(f"{path} is asked by {allowed}, not by {method}.")
        self.allowed = allowed


class ApiKeyError(AkunuError):
    """The API key is missing or wrong."""


class ForbiddenError(AkunuError):
    """The request comes from where none is expected."""


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
    headers: Mapping[str, str] = field(default_factory=dict)


_FAULTS: Final[dict[type[Exception], tuple[HTTPStatus, str]]] = {
    ContextOverflowError: (HTTPStatus.BAD_REQUEST, "exceed_context_size_error"),
    InvalidRequestError: (HTTPStatus.BAD_REQUEST, "invalid_request_error"),
    BodyTooLargeError: (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "invalid_request_error"),
    NotFoundError: (HTTPStatus.NOT_FOUND, "not_found_error"),
    MethodError: (HTTPStatus.METHOD_NOT_ALLOWED, "invalid_request_error"),
    ApiKeyError: (HTTPStatus.UNAUTHORIZED, "authentication_error"),
    ForbiddenError: (HTTPStatus.FORBIDDEN, "permission_error"),
    SupersededError: (HTTPStatus.CONFLICT, "superseded_error"),
    QueueFullError: (HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error"),
    LoadingError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable_error"),
    ShuttingDownError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable_error"),
    EngineClosedError: (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable_error"),
    AkunuError: (HTTPStatus.INTERNAL_SERVER_ERROR, "server_error"),
}
_RETRY: Final = {"Retry-After": "1"}
_HEADERS: Final[dict[type[Exception], Mapping[str, str]]] = {
    QueueFullError: _RETRY,
    LoadingError: _RETRY,
    ApiKeyError: {"WWW-Authenticate": "Bearer"},
}

_NOTED: Final = "akunu_py.fault"


def note_fault(scope: MutableMapping[str, Any], fault: Fault) -> None:
    """Keeps with a request why it failed, for the log."""
    scope[_NOTED] = fault


def noted_fault(scope: MutableMapping[str, Any]) -> Fault | None:
    """Why a request failed; None if it did not."""
    fault: Fault | None = scope.get(_NOTED)
    return fault


def fault_of(error: Exception) -> Fault:
    """What a client is told about an error; what nobody foresaw is logged."""
    for family in type(error).__mro__:
        if family in _FAULTS:
            status, kind = _FAULTS[family]
            param = error.field if isinstance(error, BodyError) else None
            headers = _HEADERS.get(family, {})
            if isinstance(error, MethodError):
                headers = {"Allow": error.allowed}
            return Fault(status, str(error), kind, param, headers)
    logger.error("a request failed: %s: %s", type(error).__name__, error)
    logger.debug("it failed here:", exc_info=error)
    return Fault(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The engine failed on this request; the server's log says how.",
        "server_error",
    )
