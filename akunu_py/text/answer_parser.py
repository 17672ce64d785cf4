"""AnswerParser: splits a streamed answer into blocks of text, reasoning and tool calls.

mlx-lm knows the model's marks around reasoning and tool calls, and how to parse a call. Its
`TextStateMachine` finds those of calls, wherever the stream is cut.
"""

import json
import logging
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, Literal
from uuid import uuid4

from akunu_py.options import Reasoning
from akunu_py.text.calls import (
    DEEPSEEK_MARKS,
    HARMONY,
    LLAMA3,
    CallLayout,
    CallReader,
    ToolCall,
    deepseek_layout,
    kinds_of,
    layout_of,
)
from akunu_py.text.json_schema import sample_arguments

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnswerFormat:
    """The marks of a model's answers. A mark that the model does not have is empty. If only
    `call_end` is, calls reach to the end of the answer. `parse` is mlx-lm's parser of the text
    between the marks, which gets the tools, too; without one, calls are read by their `layout`, if
    that is known. For `again` and `headers`, see `Reasoning`. `in_words`, of tools, calls and
    results, is what the template has no good place for; it is said in messages.
    """

    think_start: str = ""
    think_end: str = ""
    call_start: str = ""
    call_end: str = ""
    parse: Callable[[str, Any], Any] | None = None
    layout: CallLayout | None = None
    again: str = ""
    headers: tuple[str, ...] = ()
    in_words: frozenset[str] = frozenset()

    @property
    def knows_calls(self) -> bool:
        """Whether the model has learnt to call in this format."""
        return "results" not in self.in_words

    @property
    def other_headers(self) -> tuple[str, ...]:
        """What messages begin with that are no calls."""
        return (*self.headers, self.think_start) if self.headers else ()

    def written(self, *calls: Mapping[str, Any]) -> str:
        """The text of calls, each a name with its arguments; empty if the layout is unknown."""
        if self.layout is None or not calls:
            return ""
        return "".join(
            f"{self.call_start}{one}{self.call_end}" for one in self.layout.written(calls)
        )

    def leaves_open(self, text: str) -> bool:
        if not (self.call_start and self.call_end):
            return bool(self.call_start) and text.lstrip().startswith(self.call_start)
        return text.rfind(self.call_start) > text.rfind(self.call_end)

    def sample_calls(self, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """A call of each tool with made-up values, to draft from; none if the layout is unknown."""
        named = ((tool["function"]["name"], sample_arguments(tool)) for tool in tools)
        calls = (self.written({"name": name, "arguments": given}) for name, given in named)
        return tuple(filter(None, calls))

    def reasoning(self, prompt: str, begun: str = "") -> Reasoning | None:
        """The reasoning that the answer to a prompt may begin with; it is open if the template has
        opened it. `begun` is the beginning of the answer, if the prompt has one. None if no
        reasoning can follow: the template, or this beginning, has closed it."""
        start, end, prompt = self.think_start, self.think_end, prompt.rstrip()
        if not start or prompt.endswith(end):
            return None
        is_open = prompt.endswith(start.rstrip())
        if begun:
            is_open = begun.lstrip().startswith(start) and end not in begun
            if not is_open:
                return None
        return Reasoning(start, end, is_open, again=self.again, headers=self.headers)

    def begin_text(self, thought: str, reasoning: Reasoning | None) -> str:
        """What a prompt has before a text that the answer continues, if the answer may begin with
        reasoning, which was `thought`."""
        is_open = reasoning is not None and reasoning.is_open
        if self.headers:
            said = f"{self.think_start}{thought}{self.think_end}{self.again}" if thought else ""
            return f"{said}{self.headers[0]}"
        if not is_open and not (reasoning and thought):
            return ""
        said = f"{thought}\n{self.think_end}\n\n".lstrip()
        return said if is_open else f"{self.think_start}\n{said}"

    def read_calls(self, text: str, tools: Sequence[Any]) -> tuple[ToolCall, ...]:
        try:
            if self.parse is None:
                return self._read_by_layout(text)
            parsed = self.parse(text, list(tools))
            return tuple(map(_tool_call, parsed if isinstance(parsed, list) else [parsed]))
        except Exception as error:  # parsers raise nearly anything on what a model may write
            logger.warning("a tool call cannot be read: %s", type(error).__name__)
            return ()

    def _read_by_layout(self, text: str) -> tuple[ToolCall, ...]:
        if self.layout is None:
            return ()
        calls: list[ToolCall] = []
        for each in CallReader(self.layout, self.call_end, {}).feed(f"{text}{self.call_end}"):
            if isinstance(each, ToolCall):
                calls.append(each)
            else:
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + each)
        return tuple(calls) if all(call.complete for call in calls) else ()


_IN_WORDS: Final = frozenset(("tools", "calls", "results"))
_HARMONY: Final = AnswerFormat(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>commentary to=functions.",
    layout=HARMONY,
    again="<|start|>assistant",
    headers=("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
)
"""gpt-oss's; an answer ends with its call."""


def answer_format_of(wrapped: Any, template: str) -> AnswerFormat:
    """The format of the answers of a model, by mlx-lm's wrapper around its tokenizer and its chat
    template. A model whose format of calls is unknown is told to write Qwen's."""
    thinking = (wrapped.think_start or "", wrapped.think_end or "")
    parse = wrapped.tool_parser
    if parse is not None:
        layout = layout_of(parse.__module__.rpartition(".")[2], template)
        marks = (wrapped.tool_call_start or "", wrapped.tool_call_end or "")
        return AnswerFormat(*thinking, *marks, parse, layout)
    shows_tools = re.search(r"\btools\b", template) is not None
    told = frozenset(() if shows_tools else ("tools",))
    if _HARMONY.headers[0] in template:
        return replace(_HARMONY, in_words=told)
    if DEEPSEEK_MARKS[0] in template:  # such templates show only some calls
        layout, told = deepseek_layout(template), told | {"calls"}
        return AnswerFormat(*thinking, *DEEPSEEK_MARKS, layout=layout, in_words=told)
    if '{"name": function name, "parameters": dictionary' in template:
        return AnswerFormat(*thinking, '{"name": "', layout=LLAMA3)
    from mlx_lm.tool_parsers import json_tools  # noqa: PLC0415  (the backend imports mlx-lm first)

    marks = (json_tools.tool_call_start, json_tools.tool_call_end)
    layout = layout_of("json_tools", template)
    return AnswerFormat(*thinking, *marks, json_tools.parse_tool_call, layout, in_words=_IN_WORDS)


BlockKind = Literal["reasoning", "text", "call"]


@dataclass
class Block:
    """A stretch of an answer of one kind, at its place among the others; a call is one block.

    `cut` is whether the answer ended within it, because of a limit or, in a call, a stop string.
    """

    index: int
    kind: BlockKind
    text: str = ""
    call: ToolCall | None = None
    cut: bool = False
    id: str = field(default_factory=lambda: uuid4().hex)

    def call_id(self, prefix: str) -> str:
        """The id that the model gave its call, or else one of ours."""
        return (self.call and self.call.id) or f"{prefix}{self.id[:24]}"


Step = tuple[Literal["start", "delta", "stop"], Block, str]
"""What happens to a block, and the text that is added."""


class _State(Enum):
    CONTENT = auto()
    CALLS = auto()
    READ_CALLS = auto()  # while they are written


class AnswerParser:
    """Splits one answer into blocks, which grow while the steps are read; where the stream is cut
    makes no difference.

    Text and reasoning are released immediately, except for text that may begin a mark. Calls are
    released when they are complete, or as they are written if a grammar `holds_calls` to the
    format's layout. A call that cannot be read is released as text, with its marks, unless a limit
    has cut it; so is every call if `tools` is None. White space after a mark is dropped. `done` are
    the blocks that have ended.
    """

    def __init__(
        self,
        format_: AnswerFormat,
        tools: Sequence[Any] | None,
        *,
        holds_calls: bool = False,
    ) -> None:
        from mlx_lm.generate import TextStateMachine  # noqa: PLC0415  (loads MLX)

        self.done: list[Block] = []
        self._open: Block | None = None
        self._format = format_
        self._tools = tools or ()
        self._call = ""  # the text of the call that is being written
        self._reader: CallReader | None = None
        calls = _State.READ_CALLS if holds_calls else _State.CALLS
        call_start = "" if tools is None else format_.call_start
        self._after_mark = False
        self._before_words, self._after_start = True, False
        marks = (
            (_State.CONTENT, call_start, calls),
            (_State.CALLS, format_.call_end, _State.CONTENT),
        )
        self._machine = TextStateMachine(
            {one: [(mark, to) for at, mark, to in marks if at is one and mark] for one in _State}
        )
        self._position = self._machine.make_state(_State.CONTENT)

    def feed(self, text: str, thought: int = 0) -> Iterator[Step]:
        """Takes the next piece of text, of which the first `thought` characters are reasoning;
        yields the steps that are certain now."""
        if thought:
            yield from self._reason(text[:thought])
        text = text[thought:]
        while True:
            self._position, (*ended, (state, rest)) = self._machine.split(self._position, text)
            for before, stretch in ended:
                yield from self._release(before, stretch, end=self._format.call_end)
            if state is not _State.READ_CALLS:
                yield from self._release(state, rest)
                return
            if not (text := (yield from self._read(rest))):
                return

    def finish(self, *, cut: bool = False, stop: str | None = None) -> Iterator[Step]:
        """Releases the text that was held back because it might have begun a mark, and closes what
        is open. `cut` is whether a limit has ended the answer: then the beginnings of marks and
        of calls are no text. A call that a `stop` string has cut is no text either."""
        self._position, rest, state = self._machine.flush(self._position)
        is_whole = stop is not None and stop == self._format.call_end
        in_vain = cut or (stop is not None and not is_whole)
        if state is _State.READ_CALLS:
            yield from () if in_vain else self._unread()
        elif state is _State.CALLS:
            end = self._format.call_end if is_whole else ""
            yield from self._release(state, "" if cut else rest, end=end, cut=in_vain)
        else:
            yield from self._release(state, "" if cut else rest)
        if self._open is not None:
            self._open.cut = cut
        yield from self._close()

    def _reason(self, text: str) -> Iterator[Step]:
        """Adds reasoning, without its marks, each of which is in one piece."""
        if self._before_words:  # of the reasoning
            text = text.lstrip()
            if not self._after_start:
                self._after_start = bool(text)
                text = text.removeprefix(self._format.think_start).lstrip()
            self._before_words = not text
        ended = text.removesuffix(self._format.think_end)
        self._after_mark = ended != text
        if self._after_mark:  # there may be more reasoning
            self._before_words, self._after_start = True, False
        yield from self._add_text("reasoning", ended)

    def _read(self, text: str) -> Generator[Step, None, str]:
        if self._reader is None:
            layout, end = self._format.layout, self._format.call_end
            assert layout is not None
            self._reader = CallReader(layout, end, kinds_of(self._tools))
        reader = self._reader
        self._call += text
        try:
            released = reader.feed(text)
        except ValueError as error:
            logger.warning("a tool call cannot be read: %s", type(error).__name__)
            self._position = self._machine.make_state(_State.CONTENT)
            yield from self._unread()
            return ""
        for each in released:
            if isinstance(each, str):
                yield self._argue(each)
            else:
                yield from self._add_call(each)
        if not reader.done:
            return ""
        self._position = self._machine.make_state(_State.CONTENT)
        self._call, self._reader, self._after_mark = "", None, True
        return reader.rest

    def _unread(self) -> Iterator[Step]:
        reader, self._reader = self._reader, None
        call, self._call = self._call, ""
        begun = reader is not None and reader.begun
        rest = reader.rest if reader and begun else f"{self._format.call_start}{call}"
        return self._add_text("text", rest)

    def _release(
        self, state: _State, text: str, *, end: str | None = None, cut: bool = False
    ) -> Iterator[Step]:
        """Adds a text; `end` is the mark after it, None if the text is not complete."""
        if state is _State.CALLS:
            self._call += text
            if end is None:
                return
            call, self._call = self._call, ""
            calls = self._format.read_calls(call, self._tools)
            for each in calls:
                yield from self._add_call(each)
            self._after_mark = bool(calls)
            if not calls and not cut:
                yield from self._add_text("text", f"{self._format.call_start}{call}{end}")
            return
        if self._after_mark:
            text = text.lstrip()
            self._after_mark = not text
        yield from self._add_text("text", text)

    def _add_text(self, kind: BlockKind, text: str) -> Iterator[Step]:
        if text:
            block = self._open
            if block is None or block.kind != kind:
                block = yield from self._start(kind)
            block.text += text
            yield "delta", block, text

    def _add_call(self, call: ToolCall) -> Iterator[Step]:
        yield from self._start("call", replace(call, arguments=""))
        if call.arguments:
            yield self._argue(call.arguments)

    def _argue(self, text: str) -> Step:
        block = self._open
        assert block is not None
        assert block.call is not None
        block.call = replace(block.call, arguments=block.call.arguments + text)
        return "delta", block, text

    def _start(self, kind: BlockKind, call: ToolCall | None = None) -> Generator[Step, None, Block]:
        yield from self._close()
        self._open = block = Block(len(self.done), kind, call=call)
        yield "start", block, ""
        return block

    def _close(self) -> Iterator[Step]:
        block, self._open = self._open, None
        if block is not None:
            if block.call is not None:
                block.cut = not block.call.complete
            self.done.append(block)
            yield "stop", block, ""


def _tool_call(parsed: Any) -> ToolCall:
    name, given = parsed["name"], parsed.get("id")
    if not isinstance(name, str):
        raise ValueError("a call has no name")
    arguments = parsed.get("arguments", {})
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return ToolCall(name, text, given if isinstance(given, str) else None)
