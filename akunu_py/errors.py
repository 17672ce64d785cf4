"""The errors of akunu_py: each says in one sentence what happened and what to do.

Any other exception that leaves the package is a bug.
"""


class AkunuError(Exception):
    """The base of all errors that akunu_py raises; the text is meant for the user."""


class InvalidRequestError(AkunuError, ValueError):
    """A request or an option asks for something that cannot be done."""


class ModelLoadError(AkunuError):
    """The weights, the tokenizer or the configuration cannot be loaded."""


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit into the cache, or the cache into the model's context."""


class CacheError(AkunuError):
    """A model leaves its cache in a state that no answer can be computed from."""


class BackendError(AkunuError):
    """MLX, or the library it computes with, is missing or unusable on this machine."""


class QueueFullError(AkunuError):
    """The queue of requests for the engine is full.

    Attributes:
        waiting: how many requests are in it.
    """

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait for the engine already; try again shortly.")
        self.waiting = waiting


class EngineClosedError(AkunuError):
    """The engine has been closed and takes no more requests."""

    def __init__(self) -> None:
        super().__init__("The engine has been closed; start it again to continue.")


class SessionFileError(AkunuError):
    """A saved conversation cannot be read or written."""
