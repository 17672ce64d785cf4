"""Conversation: messages and tools as one job, and the blocks of its answer, for all contracts.

Messages and tools come in OpenAI's form, which templates expect.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

from akunu_py.errors import InvalidRequestError
from akunu_py.events import Completion, Event
from akunu_py.options import Grammar, Options, Wake
from akunu_py.server.body import Body
from akunu_py.server.job import Job
from akunu_py.server.wire import FINISH_REASONS
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser, Part, ReasoningCounter, ToolCall
from akunu_py.text.call_grammar import CallGrammar, make_checked

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ToolChoice:
    """Whether a tool may or must be called, and the names of those that may; None for all."""

    may_call: bool = True
    must_call: bool = False
    among: Sequence[str] | None = None


@dataclass(frozen=True)
class Tools:
    """The tools that the model may call.

    With `must_call`, the completion has to be a call; with `one_call`, it ends after the first.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    one_call: bool = False


def read_tool_choice(body: Body) -> ToolChoice:
    """`tool_choice` of OpenAI's contracts: a word, or an object that names a tool by its name or
    by its type, or several that are allowed.

    Raises:
        BodyError: if it is neither.
    """
    if not isinstance(body.any("tool_choice"), dict):
        word = body.text("tool_choice", default="auto")
        if word not in ("auto", "none", "required"):
            body.refuse("tool_choice", "must be auto, none, required, or name a tool")
        return ToolChoice(may_call=word != "none", must_call=word == "required")
    given = body.object("tool_choice")
    if given.text("type", default="") == "allowed_tools":
        allowed = given.object("allowed_tools") if given.has("allowed_tools") else given
        names = (tool.object("function") if tool.has("function") else tool
                 for tool in allowed.objects("tools"))  # fmt: skip
        must_call = allowed.any("mode") == "required"
        return ToolChoice(must_call=must_call, among=[n.text("name", default="") for n in names])
    function = given.object("function") if given.has("function") else given
    name = function.text("name", default="") or given.text("type", default="")
    if name in ("", "function"):
        given.refuse("function.name", "is missing")
    return ToolChoice(must_call=True, among=[name])


def select_tools(
    body: Body,
    offered: Sequence[dict[str, Any]],
    choice: ToolChoice | None = None,
    *,
    parallel: bool | None = None,
    model_has_tools: bool,
) -> Tools:
    """The tools that a request lets the model call. If the model's template has no tools, they are
    ignored, unless a call is required.

    Args:
        body: has `tool_choice` and `parallel_tool_calls`, unless a contract has its own.
        offered: the tools, in OpenAI's form.
        choice, parallel: what a contract with its own fields has read.
        model_has_tools: whether the template has tools.

    Raises:
        BodyError: if `tool_choice` cannot be served.
    """
    choice = choice or read_tool_choice(body)
    if parallel is None:
        parallel = body.flag("parallel_tool_calls", default=True)
    if choice.among is not None:
        offered = [tool for tool in offered if tool["function"]["name"] in choice.among]
    if choice.must_call:
        if choice.among is not None and not offered:
            body.refuse("tool_choice", "names a function that is not among `tools`")
        if not offered:
            body.refuse("tool_choice", "needs `tools` to choose from")
        if not model_has_tools:
            body.refuse("tool_choice", "cannot be served: this model's chat template has no tools")
    if not choice.may_call or not model_has_tools:
        return Tools()
    return Tools(tuple(offered), choice.must_call, bool(offered) and not parallel)


def hold_calls(
    tokenizer: "Tokenizer", answer: Grammar | None, tools: Tools
) -> tuple[Grammar | None, bool]:
    """The grammar of an answer that may call tools, and whether it holds the calls.

    A call that has to come, or one of a `strict` function, follows its schema, or the request is
    refused. Other calls follow it as far as it can be followed.

    Args:
        tokenizer: knows how the model writes calls.
        answer: the grammar of an answer without calls, if there is one.
        tools: what may be called.

    Raises:
        InvalidRequestError: if a grammar cannot be made.
    """
    format_ = tokenizer.answer_format
    if not tools.offered:
        return answer, False
    if answer is not None and answer.kind != "json_schema":
        raise InvalidRequestError(f"A {answer.name} cannot be combined with `tools`.")
    chooses_answer = answer is not None and not tools.must_call
    is_strict = tools.must_call or chooses_answer
    is_strict |= any(tool["function"].get("strict") is True for tool in tools.offered)
    if format_.layout is None:
        if is_strict:
            raise InvalidRequestError("This model's format of calls is not known to this server.")
        return None, False

    def make(*, simple: bool = False) -> str:
        grammar = CallGrammar(
            format_,
            tools.offered,
            tokenizer.control_tokens,
            one_call=tools.one_call,
            simple=simple,
        )
        if chooses_answer and answer is not None:
            return grammar.or_answer(answer.source)
        if tools.must_call:
            return grammar.calls_only()
        return grammar.after_mark()

    try:
        source = make_checked(make)
    except InvalidRequestError:
        if is_strict:
            raise
        try:
            source = make_checked(partial(make, simple=True))
        except InvalidRequestError:
            return None, False
    if chooses_answer:
        return Grammar("lark", source), True
    wake = Wake(
        format_.call_start,
        awake=tools.must_call,
        think_start=format_.think_start,
        think_end=format_.think_end,
        once=tools.must_call or tools.one_call or not format_.call_end,
    )
    return Grammar("lark", source, wake), True


@dataclass(frozen=True)
class Conversation:
    """A conversation as a job; `tools` are those that its answer may call."""

    job: Job
    tools: Tools
    _format: AnswerFormat
    _prompt: str
    _holds_calls: bool

    @classmethod
    def begin(
        cls,
        engine: "Engine",
        messages: Sequence[Mapping[str, Any]],
        options: Options,
        tools: Tools,
        settings: Mapping[str, Any],
        *,
        continues: bool = True,
        opens: bool = True,
    ) -> "Conversation":
        """Renders a conversation by the model's template.

        If the last message is the assistant's, and text, the answer continues it, unless
        `continues` is false. Without `opens` the prompt does not begin an answer.

        Raises:
            InvalidRequestError: if the template refuses it.
        """
        tokenizer = engine.tokenizer
        format_ = tokenizer.answer_format
        last = messages[-1]
        begun = last["role"] == "assistant" and bool(last["content"]) and "tool_calls" not in last
        begun = begun and continues
        if tools.must_call:  # stop strings end texts; calls that one cuts do not parse
            options = replace(options, stop=())
        grammar, holds = hold_calls(tokenizer, options.grammar, tools)
        is_answer = grammar is not None and grammar.wake is None
        prompt = tokenizer.render_chat(
            messages[:-1] if begun else messages,
            open_answer=opens or begun,
            tools=tools.offered,
            settings=_variables(tokenizer, tools.offered) | dict(settings),
        )
        thinking = format_.is_thinking(prompt)
        if thinking and (begun or tools.must_call or (holds and is_answer)):
            prompt, thinking = prompt + f"{format_.think_end}\n\n", False
        if begun:
            prompt += tokenizer.as_text(last["content"])
        if tools.must_call:
            prompt += format_.call_start
        if grammar is not None and grammar.wake is not None:
            grammar = replace(grammar, wake=replace(grammar.wake, thinking=thinking))
        if tools.one_call and format_.call_end and not holds:
            options = replace(options, stop=(*options.stop, format_.call_end))
        # With a grammar and no tools, everything that the model writes is content.
        parsed_as = AnswerFormat() if is_answer and not holds else format_
        samples = format_.sample_calls(tools.offered)
        options = replace(options, grammar=grammar, sample_calls=samples)
        return cls(Job(prompt, options, is_chat=True), tools, parsed_as, prompt, holds)

    def count_tokens(self, tokenizer: "Tokenizer") -> int:
        """How long its prompt is."""
        return len(tokenizer.encode(self._prompt))

    def blocks(self) -> "Blocks":
        """The blocks of an answer that has not begun."""
        return Blocks(self.parser(), ReasoningCounter(self._format, self._prompt))

    def parser(self) -> AnswerParser:
        """A new parser of an answer."""
        return AnswerParser(
            self._format,
            self.tools.offered or None,
            self._prompt,
            holds_calls=self._holds_calls,
        )


def _variables(tokenizer: "Tokenizer", tools: Sequence[Any]) -> dict[str, str]:
    """What llama-server gives to some templates, unless the user has set it: to Llama 3's today's
    date, without which they say that it is July 2024; to Firefunction's the tools, too."""
    now, found = datetime.now(UTC), {}
    if "date_string" in tokenizer.template:
        found["date_string"] = now.strftime("%d %b %Y")
    if "functools[" in tokenizer.template:
        functions = json.dumps(tools, indent=2) if tools else ""
        found["functions"] = str(tokenizer.as_text(functions))
        found["datetime"] = now.strftime("%b %d %Y %H:%M:%S GMT")
    return {name: value for name, value in found.items() if name not in tokenizer.template_args}


@dataclass
class Block:
    """A stretch of an answer of one kind, at its place among the others; a call is one block.

    `cut` is whether the answer ended within it, because of a limit or, in a call, a stop string.
    """

    index: int
    kind: Literal["reasoning", "text", "call"]
    text: str = ""
    call: ToolCall | None = None
    cut: bool = False
    id: str = field(default_factory=lambda: uuid4().hex)


Step = tuple[Literal["start", "delta", "stop"], Block, str]
"""What happens to a block, and the text that is added."""


class Blocks:
    """The blocks of one answer, as they grow, and how many of its tokens were reasoning."""

    def __init__(self, parser: AnswerParser, counter: ReasoningCounter) -> None:
        self.done: list[Block] = []
        self.reasoning_tokens = 0
        self._parser = parser
        self._counter = counter
        self._open: Block | None = None

    @property
    def calls(self) -> list[Block]:
        """The calls that have ended, of which the last one may be cut."""
        return [block for block in self.done if block.call]

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls, and none is cut."""
        return bool(self.calls) and not any(block.cut for block in self.calls)

    def text(self, kind: Literal["reasoning", "text"]) -> str:
        """The text of all complete blocks of a kind."""
        return "".join(block.text for block in self.done if block.kind == kind)

    def feed(self, source: Event | Completion) -> Iterator[Step]:
        """Takes the next event, or a whole answer; at its end, closes what is open."""
        ends = source.finish_reason is not None
        self.reasoning_tokens += self._counter.count(source.pieces)
        parts = self._parser.feed(source.text)
        if ends:
            parts += self._parser.finish()
        for part in parts:
            yield from self._add(part)
        if ends:
            if self._open is not None:
                assert source.finish_reason is not None
                self._open.cut = FINISH_REASONS[source.finish_reason] == "length"
            yield from self._close()

    def _add(self, part: Part) -> Iterator[Step]:
        for call in part.calls:
            yield from self._start("call", replace(call, arguments=""))
            yield from self._argue(call.arguments)
        yield from self._argue(part.arguments)
        if part.reasoning or part.content:
            kind: Literal["reasoning", "text"] = "reasoning" if part.reasoning else "text"
            if self._open is None or self._open.kind != kind:
                yield from self._start(kind)
            text = part.reasoning or part.content
            self._current.text += text
            yield "delta", self._current, text

    def _argue(self, text: str) -> Iterator[Step]:
        """Adds to the arguments of the call that is open."""
        if text:
            block = self._current
            assert block.call is not None
            block.call = replace(block.call, arguments=block.call.arguments + text)
            yield "delta", block, text

    @property
    def _current(self) -> Block:
        assert self._open is not None
        return self._open

    def _start(
        self, kind: Literal["reasoning", "text", "call"], call: ToolCall | None = None
    ) -> Iterator[Step]:
        yield from self._close()
        self._open = Block(len(self.done), kind, call=call)
        yield "start", self._open, ""

    def _close(self) -> Iterator[Step]:
        if self._open is not None:
            block, self._open = self._open, None
            if block.call is not None:
                block.cut = not block.call.complete
            self.done.append(block)
            yield "stop", block, ""
