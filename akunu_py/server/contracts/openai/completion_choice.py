"""CompletionChoice: an answer as `/v1/completions` tells it."""

from typing import Any

from akunu_py.request import Event
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
        self._logprobs = None if spelling is None else CompletionLogprobs(spelling)
        self._scores = False
        self._told = None if self._logprobs is None else self._logprobs.take(())

    def take(self, event: Event) -> list[dict[str, Any]]:
        text, self._unsaid = self._unsaid + event.text, ""
        self._text.append(text)
        self._finish = event.finish_reason or self._finish
        logprobs = self._tell(event, text)
        if not text and not (logprobs and logprobs["tokens"]):
            return []
        return [self._choice(text, logprobs, None)]

    def end(self) -> dict[str, Any]:
        return self._choice("", None, FINISH_REASONS[self._finish])

    def whole(self) -> dict[str, Any]:
        return self._choice("".join(self._text), self._told, FINISH_REASONS[self._finish])

    def _tell(self, event: Event, text: str) -> dict[str, Any] | None:
        """The log-probabilities of an event, and into those of the whole answer with them."""
        if self._logprobs is None or self._told is None:
            return None
        if event.prompt_logprobs is not None:
            self._scores = True
            news = self._logprobs.take_prompt(event.prompt_logprobs, text)
        elif self._scores and event.end_logprob is not None:
            # Who scores a prompt takes the last entry for the one token that had to be generated.
            news = self._logprobs.take([*event.logprobs, event.end_logprob])
        else:
            news = self._logprobs.take(event.logprobs)
        for name, values in news.items():
            self._told[name] += values
        return news

    def _choice(
        self, text: str, logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}
