"""The errors of akunu_py: each says in one sentence what happened and what to do.

Any other exception that leaves the package is a bug.
"""


def shortened(text: str, most: int) -> str:
    """A text, or the beginning and the end of one with more characters than that."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


class AkunuError(Exception):
    """The base of all errors that akunu_py raises; the text is meant for the user.

    >>> akunu_py.Options(max_tokens=-5)
    Traceback (most recent call last):
    akunu_py.errors.InvalidRequestError: `max_tokens` must be 0 or more, not -5.
    """


class InvalidRequestError(AkunuError, ValueError):
    """A request or an option asks for something that cannot be done."""


class UnreadableRequestError(InvalidRequestError):
    """A part of a request cannot be used. The message may quote it, so it is never logged."""


class ModelLoadError(AkunuError):
    """The weights, the tokenizer or the configuration cannot be loaded."""


class ModelNotFoundError(ModelLoadError):
    """There is no such model, here or on the hub."""


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit into the cache, or the cache into the model's context. `tokens` of
    the prompt (or a lower bound; None if no prompt is too long) exceed `limit`.
    """

    def __init__(
        self, sentence: str, *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.tokens = tokens
        self.limit = limit


class CacheError(AkunuError):
    """A model left its cache in a state from which no answer can be computed."""


class BackendError(AkunuError):
    """MLX, or the library it computes with, is missing or unusable on this machine."""


class RankError(AkunuError):
    """Another process that computes a part of the model is lost or out of step."""


class QueueFullError(AkunuError):
    """A queue for requests is full."""

    def __init__(
        self, sentence: str = "Too many requests are waiting already; try again shortly."
    ) -> None:
        super().__init__(sentence)


class EngineClosedError(AkunuError):
    """The engine has been closed and accepts no more requests."""

    def __init__(self) -> None:
        super().__init__("The engine has been closed; load the model again to continue.")


class SessionFileError(AkunuError):
    """A saved conversation cannot be read or written."""


class EditError(AkunuError):
    """The answer to an edit request cannot be used, or the edited file cannot be written; the file
    is unchanged."""
