"""OpenAI's chat completions: content, reasoning and tool calls."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.request import Completion, Event
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.conversation import Conversation, select_tools
from akunu_py.server.dialect import OPENAI, read_format, read_options
from akunu_py.server.fields import made_call, read_logprobs, read_messages, read_offered_tools
from akunu_py.server.job import Job
from akunu_py.server.openai_common import ResponseKind, respond
from akunu_py.server.wire import (
    FINISH_REASONS,
    CompactJSONResponse,
    describe_logprob,
    logprob_entries,
)
from akunu_py.stats import Finish
from akunu_py.text.answer_parser import AnswerParser, Part, ReasoningCounter, ToolCall, joined
from akunu_py.text.chat_template import reserved_names
from akunu_py.text.stream import Piece
from akunu_py.text.token_bytes import TokenBytes

_KIND: Final = ResponseKind("chatcmpl-", "chat.completion", "chat.completion.chunk")
_MAX_EFFORT_LENGTH: Final = 16
"""Characters of a `reasoning_effort`; each model has its own words for it."""


def chat(request: ApiRequest) -> Response:
    """`/v1/chat/completions`: continues a conversation."""
    conversation = read_conversation(request)
    job = conversation.job
    spelling = None if job.options.logprobs is None else request.engine.tokenizer.token_bytes

    def make_choice(index: int, _: Job) -> _ChatChoice:
        return _ChatChoice(index, conversation.parser(), conversation.reasoning_counter(), spelling)

    return respond(request, [job], _KIND, make_choice)


def count_tokens(request: ApiRequest) -> Response:
    """`/v1/chat/completions/input_tokens`: how long the prompt of such a request is."""
    tokens = read_conversation(request).count_tokens(request.engine.tokenizer)
    return CompactJSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


def read_conversation(request: ApiRequest) -> Conversation:
    """A body as a conversation.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, tokenizer = request.body, request.engine.tokenizer
    grammar = read_format(body, "response_format")
    for name in ("functions", "function_call"):
        if body.has(name):
            body.refuse(name, "is obsolete; send `tools` and `tool_choice` instead")
    has_tools = tokenizer.answer_format.has_tools
    tools = select_tools(body, read_offered_tools(body), model_has_tools=has_tools)
    options = read_options(request, OPENAI, logprobs=read_logprobs(body), grammar=grammar)
    messages = read_messages(body)
    opens = body.flag("add_generation_prompt", default=None)
    continues = body.flag("continue_final_message", default=None)
    if opens and continues:
        body.refuse("continue_final_message", "cannot be combined with `add_generation_prompt`")
    if continues and messages[-1]["role"] != "assistant":
        body.refuse("continue_final_message", "needs a last message of the assistant")
    return Conversation.begin(
        request.engine,
        messages,
        options,
        tools,
        _read_template_settings(body),
        continues=continues is not False and not opens,
        opens=opens is not False,
    )


class _ChatChoice:
    """A choice of `/v1/chat/completions`; `spelling` is None if no log-probabilities are wanted."""

    def __init__(
        self,
        index: int,
        parser: AnswerParser,
        counter: ReasoningCounter,
        spelling: TokenBytes | None,
    ) -> None:
        self._index = index
        self._parser = parser
        self._counter = counter
        self._spelling = spelling
        self._has_begun = False
        self._num_calls = 0
        self.reasoning_tokens = 0

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        self._count(event.pieces)
        deltas = list(map(self._delta, self._parse(event.text, event.finish_reason)))
        if event.logprobs and not deltas:
            deltas = [{"content": ""}]
        if not self._has_begun:
            self._has_begun = True
            deltas = [{"role": "assistant", "content": None}, *deltas]
        choices = [self._choice(delta) for delta in deltas]
        if event.logprobs:
            choices[-1]["logprobs"] = self._logprobs(event.logprobs)
        return choices

    def end(self, finish: Finish) -> dict[str, Any]:
        return self._choice({}) | {"finish_reason": self._finish_reason(finish)}

    def whole(self, completion: Completion) -> dict[str, Any]:
        self._count(completion.pieces)
        answer = joined(self._parse(completion.text, completion.finish_reason))
        self._num_calls = len(answer.calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.content or (None if answer.calls else ""),
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [_tool_call(call) for call in answer.calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": self._finish_reason(completion.finish_reason),
        }

    def _count(self, pieces: Sequence[Piece]) -> None:
        self.reasoning_tokens += self._counter.count(pieces)

    def _parse(self, text: str, finish: Finish | None) -> list[Part]:
        parts = self._parser.feed(text)
        return parts if finish is None else [*parts, *self._parser.finish()]

    def _delta(self, part: Part) -> dict[str, Any]:
        """The `delta` for a part of a stream."""
        if part.calls:
            first = self._num_calls
            self._num_calls += len(part.calls)
            calls = enumerate(part.calls, first)
            return {"tool_calls": [{"index": index} | _tool_call(call) for index, call in calls]}
        if part.arguments:
            more = {"index": self._num_calls - 1, "function": {"arguments": part.arguments}}
            return {"tool_calls": [more]}
        if part.reasoning:
            return {"reasoning_content": part.reasoning}
        return {"content": part.content}

    def _finish_reason(self, finish: Finish) -> str:
        reason = FINISH_REASONS[finish]
        return "tool_calls" if self._num_calls and reason == "stop" else reason

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """One object for each token, if log-probabilities are wanted."""
        if self._spelling is None:
            return None
        content = logprob_entries(entries, partial(describe_logprob, self._spelling))
        return {"content": content, "refusal": None}

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return made_call(call.name, call.arguments, call.id or f"call_{uuid4().hex[:24]}")


def _read_template_settings(body: Body) -> dict[str, Any]:
    """Variables for the chat template; a client cannot replace the template or the messages."""
    given = body.object("chat_template_kwargs")
    given.flag("enable_thinking", default=None)  # refuses what is not a flag
    names = {name for name in given.names() if given.has(name)} - reserved_names()
    settings = {name: given.any(name) for name in names}
    effort = body.text("reasoning_effort", default=None)
    if effort is not None:
        settings["reasoning_effort"] = effort[:_MAX_EFFORT_LENGTH]
    return settings
