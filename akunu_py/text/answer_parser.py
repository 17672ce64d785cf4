"""AnswerParser: splits a streamed answer into content, reasoning and tool calls.

mlx-lm knows the model's marks around reasoning and tool calls, and how to parse a call. Its
`TextStateMachine` finds the marks, wherever the stream is cut.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants to call, with its arguments as JSON text. `id` is None if
    the model did not name the call."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True)
class AnswerFormat:
    """The marks of a model's answers. A mark that the model does not have is empty.

    Attributes:
        think_start, think_end: around reasoning.
        call_start, call_end: around tool calls; if only the end is empty, calls reach to the end
            of the answer.
        parse: mlx-lm's parser of the text between the marks, called with that and the tools; None
            if the model cannot call tools.
    """

    think_start: str = ""
    think_end: str = ""
    call_start: str = ""
    call_end: str = ""
    parse: Callable[[str, Any], Any] | None = None

    @property
    def has_tools(self) -> bool:
        """Whether the model can call tools."""
        return self.parse is not None

    def is_thinking(self, prompt: str) -> bool:
        """Whether a prompt ends inside reasoning; some templates open it themselves."""
        if not self.think_start:
            return False
        return prompt.rfind(self.think_start) > prompt.rfind(self.think_end)

    def read_calls(self, text: str, tools: Sequence[Any]) -> tuple[ToolCall, ...]:
        """The calls in a text; none if it cannot be read, for example because it was cut short."""
        if self.parse is None:
            return ()
        try:
            parsed = self.parse(text, list(tools))
            return tuple(map(_tool_call, parsed if isinstance(parsed, list) else [parsed]))
        except Exception as error:  # parsers raise nearly anything on what a model may write
            logger.warning("a tool call cannot be read: %s", type(error).__name__)
            return ()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an answer: text for the user, text of the model's reasoning, or tool calls. Only
    one of its fields is set."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def joined(parts: Sequence[Part]) -> Part:
    """Several parts as one, in which any field may be set."""
    return Part(
        "".join(part.content for part in parts),
        "".join(part.reasoning for part in parts),
        tuple(call for part in parts for call in part.calls),
    )


class _State(Enum):
    CONTENT = auto()
    REASONING = auto()
    CALLS = auto()


class AnswerParser:
    """Splits one answer into its parts; where the stream is cut makes no difference.

    Content and reasoning are released immediately, except for text that may begin a mark; calls
    are released when they are complete. A call that cannot be read is released as content, with its
    marks, so that nothing is lost. White space after a mark is dropped.

    Args:
        format_: the marks to look for.
        tools: those that may be called; None leaves calls in the text.
        prompt: the prompt of the answer, which may end inside reasoning or a call.
    """

    def __init__(self, format_: AnswerFormat, tools: Sequence[Any] | None, prompt: str) -> None:
        from mlx_lm.generate import TextStateMachine  # noqa: PLC0415  (loads MLX)

        self._format = format_
        self._tools = tools or ()
        self._call = ""
        state = _State.CONTENT
        if tools is not None and format_.has_tools and prompt.endswith(format_.call_start):
            state = _State.CALLS
        elif format_.is_thinking(prompt):
            state = _State.REASONING
        self._after_mark = state is _State.REASONING
        marks = {
            _State.CONTENT: [
                (format_.think_start, _State.REASONING),
                (format_.call_start if tools is not None else "", _State.CALLS),
            ],
            _State.REASONING: [(format_.think_end, _State.CONTENT)],
            _State.CALLS: [(format_.call_end, _State.CONTENT)],
        }
        self._machine = TextStateMachine(
            {state: [(mark, to) for mark, to in found if mark] for state, found in marks.items()}
        )
        self._position = self._machine.make_state(state)

    def feed(self, text: str) -> list[Part]:
        """Takes the next piece of text and returns the parts that are certain now."""
        self._position, stretches = self._machine.split(self._position, text)
        parts: list[Part] = []
        for state, stretch in stretches[:-1]:
            parts += self._release(state, stretch, end=self._format.call_end)
            self._after_mark = True
        return parts + self._release(*stretches[-1])

    def finish(self) -> list[Part]:
        """The text that was held back because it might have begun a mark."""
        self._position, rest, state = self._machine.flush(self._position)
        return self._release(state, rest, end="")

    def _release(self, state: _State, text: str, *, end: str | None = None) -> list[Part]:
        """The part that a text is; `end` is the mark after it, None if the text is not complete."""
        if state is _State.CALLS:
            self._call += text
            if end is None:
                return []
            call, self._call = self._call, ""
            calls = self._format.read_calls(call, self._tools)
            content = f"{self._format.call_start}{call}{end}"
            return [Part(calls=calls) if calls else Part(content)]
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        if not text:
            return []
        return [Part(reasoning=text) if state is _State.REASONING else Part(text)]


def _tool_call(parsed: Any) -> ToolCall:
    """A call as a parser returns it.

    Raises:
        ValueError: if it has no name.
    """
    name, given = parsed["name"], parsed.get("id")
    if not isinstance(name, str):
        raise ValueError("a call has no name")
    arguments = parsed.get("arguments", {})
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(name, text, given if isinstance(given, str) else None)
