"""The errors that clients see: a status, a sentence and a kind.

No internal detail reaches a client: an error that is not an `AkunuError` becomes a general 500, and
its details go to the log.
"""

import logging
from collections.abc import Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from akunu_py.errors import (
    AkunuError,
    ContextOverflowError,
    EditError,
    EngineClosedError,
    InvalidRequestError,
    ModelLoadError,
    ModelNotFoundError,
    QueueFullError,
    UnreadableRequestError,
    shortened,
)
from akunu_py.model.library import LocalModel

logger = logging.getLogger(__name__)

NOTED_ERROR: Final = "akunu_py.error"
"""The key in a request's scope for the sentence that the log reports."""

RETRY: Final = {"Retry-After": "1"}
_LONGEST: Final = 2000
"""The most characters of a sentence: a longer one repeats what the client sent."""


class ApiError(AkunuError):
    """A request failed: the response's status and headers, and one sentence.

    `kind` is the `type` that llama-server and OpenAI have for the error, `param` the wrong field,
    and `facts` has llama-server's further fields. With `quotes`, the sentence may quote the
    request, which the log must not.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
        quotes: bool = False,
    ) -> None:
        self.message = shortened(message, _LONGEST)
        super().__init__(self.message)
        self.status = status
        self.kind = kind
        self.param = param
        self.headers = headers or {}
        self.facts = facts or {}
        self.quotes = quotes


class BodyError(ApiError):
    """The body is not a JSON object, or a field has a wrong type or value."""

    def __init__(self, sentence: str, param: str | None = None, *, quotes: bool = False) -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, sentence, param=param, quotes=quotes)


class NotFoundError(ApiError):
    """There is no such path or model."""

    def __init__(self, sentence: str, param: str | None = None, *, quotes: bool = False) -> None:
        status, kind = HTTPStatus.NOT_FOUND, "not_found_error"
        super().__init__(status, sentence, kind, param=param, quotes=quotes)


class UnavailableError(ApiError):
    """The server cannot answer now."""

    def __init__(self, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        status = HTTPStatus.SERVICE_UNAVAILABLE
        super().__init__(status, sentence, "unavailable_error", headers=headers)


class LoadingError(UnavailableError):
    """The model is not loaded yet."""

    def __init__(self) -> None:
        super().__init__("Loading model", RETRY)  # llama-server's words; clients look for them


_ENGINE_ERRORS: Final = (
    (ContextOverflowError, HTTPStatus.BAD_REQUEST, "exceed_context_size_error", None),
    (InvalidRequestError, HTTPStatus.BAD_REQUEST, "invalid_request_error", None),
    (EditError, HTTPStatus.BAD_REQUEST, "invalid_request_error", None),
    (ModelNotFoundError, HTTPStatus.NOT_FOUND, "not_found_error", None),
    (QueueFullError, HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error", RETRY),
    (EngineClosedError, HTTPStatus.SERVICE_UNAVAILABLE, "unavailable_error", None),
    (AkunuError, HTTPStatus.INTERNAL_SERVER_ERROR, "server_error", None),
)
"""The first row whose class matches an error decides."""


def load_error(error: ModelLoadError, model: LocalModel) -> ApiError:
    """The error that a client sees if a model does not load: without the path of its folder."""
    sentence = str(error).replace(str(model.folder), model.name)
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, sentence, "server_error")


def noted_error(scope: MutableMapping[str, Any], error: Exception) -> ApiError:
    """The error that a client sees; leaves a sentence for the log in the scope.

    Only text is left there, and callers must not keep the error in a variable: its traceback refers
    to the request, which would then live until the next full garbage collection.
    """
    found = api_error_of(error)
    scope[NOTED_ERROR] = f"({found.kind})" if found.quotes else found.message
    return found


def api_error_of(error: Exception) -> ApiError:
    """The error that a client sees; an unexpected error is logged."""
    if isinstance(error, ApiError):
        return error
    for family, status, kind, headers in _ENGINE_ERRORS:
        if isinstance(error, family):
            facts, sentence = {}, str(error)
            if isinstance(error, ContextOverflowError):
                facts = {"n_prompt_tokens": error.tokens, "n_ctx": error.limit}
                # litellm, and aider through it, look for OpenAI's words; others for llama-server's.
                sentence += f" This model's maximum context length is {error.limit} tokens."
            quotes = isinstance(error, UnreadableRequestError)
            return ApiError(status, sentence, kind, headers=headers, facts=facts, quotes=quotes)
    logger.error("a request failed: %s: %s", type(error).__name__, error)
    logger.debug("it failed here:", exc_info=error)
    return ApiError(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "The engine failed on this request; see the server's log.",
        "server_error",
    )
