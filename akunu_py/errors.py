"""Every error a caller of akunu_py may see: what happened and what to do, in one sentence.

Anything else that leaves the package is a defect in it.
"""


class AkunuError(Exception):
    """The base of all errors raised on purpose; its text is meant for the user."""


class InvalidRequestError(AkunuError, ValueError):
    """A request or an option asks for something that cannot be done."""


class ModelLoadError(AkunuError):
    """The weights, the tokenizer or the configuration cannot be loaded."""


class ContextOverflowError(InvalidRequestError):
    """The prompt does not fit into the cache, or the cache not into the model's context."""


class BackendError(AkunuError):
    """MLX, or the library it computes with, is missing or unusable on this machine."""


class QueueFullError(AkunuError):
    """As many requests wait for the engine as may.

    Attributes:
        waiting: how many that is.
    """

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} requests wait for the engine already; try again shortly.")
        self.waiting = waiting


class EngineClosedError(AkunuError):
    """The engine has been told to end, and takes no more work."""

    def __init__(self) -> None:
        super().__init__("The engine has been closed; start it again to go on.")


class SessionFileError(AkunuError):
    """A saved conversation cannot be read or written."""
