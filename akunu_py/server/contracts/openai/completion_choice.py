"""CompletionChoice: an answer as `/v1/completions` tells it."""

from typing import Any

from akunu_py.request import Event
from akunu_py.sampling.token_logprob import TokenLogprob
from akunu_py.server.contracts.openai.logprobs import CompletionLogprobs
from akunu_py.server.finish_reasons import FINISH_REASONS
from akunu_py.stats import Finish
from akunu_py.text.token_bytes import TokenBytes


class CompletionChoice:
    """One answer.

    Args:
        index: among those of the request.
        echo: what is repeated before it.
        spelling: of the tokens whose log-probabilities are wanted; None if none are.
    """

    def __init__(self, index: int, echo: str, spelling: TokenBytes | None) -> None:
        self._index = index
        self._unsaid = echo
        self._text: list[str] = []
        self._finish = Finish.CANCELLED
        self._spelling = spelling
        self._entries: list[TokenLogprob] = []
        self._streamed = None if spelling is None else CompletionLogprobs(spelling)

    def take(self, event: Event) -> list[dict[str, Any]]:
        text, self._unsaid = self._unsaid + event.text, ""
        self._text.append(text)
        self._entries.extend(event.logprobs)
        self._finish = event.finish_reason or self._finish
        if not text and not event.logprobs:
            return []
        logprobs = None if self._streamed is None else self._streamed.take(event.logprobs)
        return [self._choice(text, logprobs, None)]

    def end(self) -> dict[str, Any]:
        return self._choice("", None, FINISH_REASONS[self._finish])

    def whole(self) -> dict[str, Any]:
        logprobs = None
        if self._spelling is not None:
            logprobs = CompletionLogprobs(self._spelling).take(self._entries)
        return self._choice("".join(self._text), logprobs, FINISH_REASONS[self._finish])

    def _choice(
        self, text: str, logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}
