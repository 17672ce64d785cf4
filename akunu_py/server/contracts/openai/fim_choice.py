"""FimChoice: an answer as `/v1/fim/completions` tells it."""

from typing import Any

from akunu_py.request import Event
from akunu_py.server.finish_reasons import FINISH_REASONS
from akunu_py.stats import Finish


class FimChoice:
    """One answer. Every delta has a text, if an empty one: Tabby reads no other.

    Args:
        index: among those of the request.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._text: list[str] = []
        self._finish = Finish.CANCELLED

    def take(self, event: Event) -> list[dict[str, Any]]:
        self._finish = event.finish_reason or self._finish
        self._text.append(event.text)
        return [self._choice("delta", event.text, None)] if event.text else []

    def end(self) -> dict[str, Any]:
        return self._choice("delta", "", FINISH_REASONS[self._finish])

    def whole(self) -> dict[str, Any]:
        return self._choice("message", "".join(self._text), FINISH_REASONS[self._finish])

    def _choice(self, name: str, text: str, finish: str | None) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": self._index, name: message, "finish_reason": finish}
