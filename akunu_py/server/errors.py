"""Every way in which a request can fail, as a fault: a status, a sentence and a kind. Each contract
has its own JSON for it.

No internal detail ever reaches a client: an error that is no `AkunuError` becomes a 500 in general
words, and its details go to the log.
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
    """The body is no JSON object, or a field has a wrong type or value.

    Attributes:
        field: the name of the wrong field; None if the whole body is wrong.
    """

    def __init__(self, sentence: str, field: str | None = None) -> None:
        super().__init__(sentence)
        self.field = field


class BodyTooLargeError(AkunuError):
    """The body is larger than the server reads."""


class LoadingError(AkunuError):
    """The model is not loaded yet."""

    def __init__(self) -> None:
        super().__init__("Loading model")  # llama-server's words; clients look for them


class ShuttingDownError(AkunuError):
    """The server is about to end."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down.")


class SupersededError(AkunuError):
    """A newer request with the same slot replaces this one."""

    def __init__(self) -> None:
        super().__init__("A newer request has taken the place of this one.")


class NotFoundError(AkunuError):
    """There is no such path or model."""


class MethodError(AkunuError):
    """The path does not support the method.

    Attributes:
        allowed: the methods that it supports, as in the Allow header.
    """

    def __init__(self, path: str, method: str, allowed: str) -> None:
        super().__init__(f"{path} is asked by {allowed}, not by {method}.")
        self.allowed = allowed


class ApiKeyError(AkunuError):
    """The API key is missing or wrong."""


class ForbiddenError(AkunuError):
    """The request has a foreign Host or Origin."""


@dataclass(frozen=True)
class Fault:
    """What a client learns about a failure.

    Attributes:
        status: the HTTP status.
        message: one sentence.
        kind: the `type` that llama-server and OpenAI have for it.
        param: the wrong field, if there is one.
        headers: of the response.
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
    """Stores the fault in the request's scope, for the log."""
    scope[_NOTED] = fault


def noted_fault(scope: MutableMapping[str, Any]) -> Fault | None:
    """The fault of a request; None if it did not fail."""
    fault: Fault | None = scope.get(_NOTED)
    return fault


def fault_of(error: Exception) -> Fault:
    """The fault for an error; an unexpected error is logged."""
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
