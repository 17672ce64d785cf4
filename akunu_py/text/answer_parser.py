"""AnswerParser: streamed text in; what is said, what is thought, and which tools are called out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from akunu_py.text.answer_format import AnswerFormat, ToolCall
from akunu_py.text.stop import pending_length


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of an answer; one of its fields is not empty.

    Attributes:
        content: what is said.
        reasoning: what is thought before.
        calls: tools that are called.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


class _State(Enum):
    CONTENT = auto()
    REASONING = auto()
    CALLS = auto()


class AnswerParser:
    """Tells the parts of one answer apart, wherever its stream happens to be cut.

    What is said or thought is released at once, but for what may begin a mark; a call when it is
    whole. One that cannot be read is content, marks included, so that nothing gets lost. White
    space between marks is dropped.

    Args:
        format_: of the model.
        tools: those that may be called; None leaves calls in the text.
        prompt: which the answer goes on from; it may have opened reasoning or a call.
    """

    def __init__(self, format_: AnswerFormat, tools: Sequence[Any] | None, prompt: str) -> None:
        self._format = format_
        self._tools = tools or ()
        self._held = ""
        self._after_mark = False
        self._marks: dict[_State, dict[str, _State]] = {
            _State.CONTENT: {
                format_.think_start: _State.REASONING,
                format_.call_start if tools is not None else "": _State.CALLS,
            },
            _State.REASONING: {format_.think_end: _State.CONTENT},
            _State.CALLS: {format_.call_end: _State.CONTENT},
        }
        for marks in self._marks.values():
            marks.pop("", None)
        self._state = _State.CONTENT
        if tools is not None and format_.has_tools and prompt.endswith(format_.call_start):
            self._state = _State.CALLS
        elif format_.is_thinking(prompt):
            self._enter(_State.REASONING)

    def feed(self, text: str) -> list[Part]:
        """Takes the next piece of text and returns the parts that are certain now."""
        self._held += text
        return list(self._advance())

    def finish(self) -> list[Part]:
        """What was held back for a mark that never came."""
        rest, self._held = self._held, ""
        return list(self._release(rest, whole=False))

    def _advance(self) -> Iterator[Part]:
        while True:
            marks = self._marks[self._state]
            found = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
            if not found:
                break
            at, mark = min(found)
            before, self._held = self._held[:at], self._held[at + len(mark) :]
            yield from self._release(before, whole=True)
            self._enter(marks[mark])
        if self._state is not _State.CALLS:
            safe = len(self._held) - pending_length(self._held, tuple(marks))
            shown, self._held = self._held[:safe], self._held[safe:]
            yield from self._release(shown, whole=False)

    def _enter(self, state: _State) -> None:
        self._state = state
        self._after_mark = True

    def _release(self, text: str, *, whole: bool) -> Iterator[Part]:
        """The part that a text is in the state it was written in."""
        if self._state is _State.CALLS:
            yield self._calls(text, whole=whole)
            return
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        if text:
            thinks = self._state is _State.REASONING
            yield Part(reasoning=text) if thinks else Part(content=text)

    def _calls(self, text: str, *, whole: bool) -> Part:
        calls = self._format.read_calls(text, self._tools)
        if calls:
            return Part(calls=calls)
        end = self._format.call_end if whole else ""
        return Part(content=f"{self._format.call_start}{text}{end}")
