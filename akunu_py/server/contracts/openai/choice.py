"""Choice: one answer in the making, as an endpoint tells it."""

from typing import Any, Protocol

from akunu_py.request import Event


class Choice(Protocol):
    """Events in, choices of responses and chunks out."""

    def take(self, event: Event) -> list[dict[str, Any]]:
        """Takes the next event; returns the choices of the chunks that tell it in a stream."""

    def end(self) -> dict[str, Any]:
        """The choice of the chunk that ends a stream of it."""

    def whole(self) -> dict[str, Any]:
        """The choice of a response that is not streamed."""
