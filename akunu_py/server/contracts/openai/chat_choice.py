"""ChatChoice: an answer as `/v1/chat/completions` tells it."""

from typing import Any
from uuid import uuid4

from akunu_py.request import Event
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.contracts.openai.logprobs import chat_logprobs
from akunu_py.server.finish_reasons import FINISH_REASONS
from akunu_py.stats import Finish
from akunu_py.text.answer_parser import AnswerParser, Part, ToolCall
from akunu_py.text.token_bytes import TokenBytes


class ChatChoice:
    """One answer.

    Args:
        index: among those of the request.
        parser: tells its parts apart.
        spelling: of the tokens whose log-probabilities are wanted; None if none are.
    """

    def __init__(self, index: int, parser: AnswerParser, spelling: TokenBytes | None) -> None:
        self._index = index
        self._parser = parser
        self._spelling = spelling
        self._begun = False
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._entries: list[TokenLogprob] = []
        self._finish = Finish.CANCELLED

    def take(self, event: Event) -> list[dict[str, Any]]:
        self._finish = event.finish_reason or self._finish
        self._entries.extend(event.logprobs)
        parts = self._parser.feed(event.text)
        if event.finish_reason is not None:
            parts += self._parser.finish()
        deltas = [self._delta(part) for part in parts]
        if event.logprobs and not deltas:
            deltas = [{"content": ""}]
        if not self._begun:
            self._begun = True
            deltas = [{"role": "assistant", "content": ""}, *deltas]
        choices = [self._choice(delta) for delta in deltas]
        if event.logprobs:
            choices[-1]["logprobs"] = self._logprobs(event.logprobs)
        return choices

    def end(self) -> dict[str, Any]:
        return self._choice({}) | {"finish_reason": self._reason}

    def whole(self) -> dict[str, Any]:
        content = "".join(self._content)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": content or (None if self._calls else ""),
            "refusal": None,
        }
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._spelling is None else self._logprobs(self._entries),
            "finish_reason": self._reason,
        }

    @property
    def _reason(self) -> str:
        reason = FINISH_REASONS[self._finish]
        return "tool_calls" if self._calls and reason == "stop" else reason

    def _delta(self, part: Part) -> dict[str, Any]:
        """Keeps a part, and returns what tells it in a stream."""
        if part.calls:
            first = len(self._calls)
            self._calls += map(_tool_call, part.calls)
            calls = [{"index": index} | call for index, call in enumerate(self._calls)]
            return {"tool_calls": calls[first:]}
        if part.reasoning:
            self._reasoning.append(part.reasoning)
            return {"reasoning_content": part.reasoning}
        self._content.append(part.content)
        return {"content": part.content}

    def _logprobs(self, entries: "list[TokenLogprob] | tuple[TokenLogprob, ...]") -> Any:
        return None if self._spelling is None else chat_logprobs(self._spelling, entries)

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id or f"call_{uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
