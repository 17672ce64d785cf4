"""The errors of akunu_py: each says in one sentence what happened and what to do.

Any other exception that leaves the package is a bug.
"""


class AkunuError(Exception):
    """The base of all errors that akunu_py raises; the text is meant for the user.

    >>> akunu_py.Options(max_tokens=-5)
    Traceback (most recent call last):
    akunu_py.errors.InvalidRequestError: `max_tokens` must be 0 or more, not -5.
    """


class InvalidRequestError(AkunuError, ValueError):
    """A request or an option asks for something that cannot be done."""


class UnreadableRequestError(InvalidRequestError):
    """A part of a request cannot be used. The sentence may quote it, so it is never logged."""


class ModelLoadError(AkunuError):
    """The weights, the tokenizer or the configuration cannot be loaded."""


class ModelNotFoundError(ModelLoadError):
    """There is no such model, here or on the hub."""


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit into the cache, or the cache into the model's context.

    Attributes:
        tokens: how many the prompt has, at least; None if no prompt is too long.
        limit: how many there is room for.
    """

    def __init__(
        self, sentence: str, *, tokens: int | None = None, limit: int | None = None
    ) -> None:
        super().__init__(sentence)
        self.tokens = tokens
        self.limit = limit


class CacheError(AkunuError):
    """A model leaves its cache in a state that no answer can be computed from."""


class BackendError(AkunuError):
    """MLX, or the library it computes with, is missing or unusable on this machine."""


class RankError(AkunuError):
    """Another process that runs a part of the model is lost or out of step."""


class QueueFullError(AkunuError):
    """Something that requests wait for is full."""

    def __init__(
        self, sentence: str = "Too many requests wait for the engine already; try again shortly."
    ) -> None:
        super().__init__(sentence)


class EngineClosedError(AkunuError):
    """The engine has been closed and takes no more requests."""

    def __init__(self) -> None:
        super().__init__("The engine has been closed; start it again to continue.")


class SessionFileError(AkunuError):
    """A saved conversation cannot be read or written."""


class EditError(AkunuError):
    """The answer to a request for an edit cannot be used, or the edited file not be written; the
    file is as it was."""
