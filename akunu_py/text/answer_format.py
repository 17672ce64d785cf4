"""AnswerFormat: what a chat template wraps reasoning and tool calls in, as mlx-lm knows it."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called.

    Attributes:
        name: of the function.
        arguments: for it, as JSON text.
        id: that the model gave the call; None if it gave none.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class AnswerFormat:
    """How to tell an answer's parts apart. Marks are empty where the model has none.

    Attributes:
        think_start, think_end: around reasoning.
        call_start, call_end: around tool calls; only the end may be empty then, and calls go on to
            the answer's end.
        parse: mlx-lm's parser of what stands between them, for a list of the tools there are.
    """

    think_start: str = ""
    think_end: str = ""
    call_start: str = ""
    call_end: str = ""
    parse: Callable[[str, Any], Any] | None = None

    @classmethod
    def of(cls, wrapped: Any) -> Self:
        """The format of the model that a tokenizer of mlx-lm belongs to."""
        return cls(
            wrapped.think_start or "",
            wrapped.think_end or "",
            wrapped.tool_call_start or "",
            wrapped.tool_call_end or "",
            wrapped.tool_parser,
        )

    @property
    def has_tools(self) -> bool:
        """Whether the model can be told about tools."""
        return self.parse is not None

    def is_thinking(self, prompt: str) -> bool:
        """Whether a prompt ends within reasoning, which some templates open themselves."""
        if not self.think_start:
            return False
        return prompt.rfind(self.think_start) > prompt.rfind(self.think_end)

    def read_calls(self, text: str, tools: Sequence[Any]) -> tuple[ToolCall, ...]:
        """The calls in a text; none if it cannot be read, because it was cut short say."""
        if self.parse is None:
            return ()
        try:
            parsed = self.parse(text, list(tools))
            return tuple(map(_tool_call, parsed if isinstance(parsed, list) else [parsed]))
        except Exception as error:  # a parser raises nearly anything on what a model may write
            logger.warning("a tool call cannot be read: %s", type(error).__name__)
            return ()


def _tool_call(parsed: Any) -> ToolCall:
    """One call of a parser's.

    Raises:
        ValueError: if it is none.
    """
    name, given = parsed["name"], parsed.get("id")
    if not isinstance(name, str):
        raise ValueError("a call has no name")
    arguments = parsed.get("arguments", {})
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(name, text, given if isinstance(given, str) else None)
