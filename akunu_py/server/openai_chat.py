"""OpenAI's chat completions: content, reasoning and tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.options import Grammar
from akunu_py.request import Completion, Event
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.fields import read_messages, read_offered_tools
from akunu_py.server.job import Job
from akunu_py.server.openai_common import (
    ResponseKind,
    bounded,
    read_options,
    respond,
    spell,
)
from akunu_py.server.wire import FINISH_REASONS, logprob_entries
from akunu_py.stats import Finish
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser, Part, ToolCall, joined
from akunu_py.text.chat_template import reserved_names
from akunu_py.text.token_bytes import TokenBytes

_KIND: Final = ResponseKind("chatcmpl-", "chat.completion", "chat.completion.chunk")
_MAX_TOP_LOGPROBS: Final = 20
_MAX_EFFORT_LENGTH: Final = 16
"""Characters of a `reasoning_effort`; each model has its own words for it."""


def chat(request: ApiRequest) -> Response:
    """`/v1/chat/completions`: continues a conversation."""
    body, tokenizer = request.body, request.engine.tokenizer
    format_ = tokenizer.answer_format
    grammar = _read_response_format(body)
    tools = _read_tools(body, model_has_tools=format_.has_tools)
    if grammar is not None and tools.offered:
        body.refuse("response_format", "cannot be combined with `tools`")
    prompt = tokenizer.render_chat(
        read_messages(body),
        open_answer=True,
        tools=tools.offered,
        settings=_read_template_settings(body),
    )
    if tools.must_call:
        prompt = _open_call(prompt, format_)
    logprobs = _read_logprobs(body)
    options = read_options(request, logprobs=logprobs, grammar=grammar)
    if tools.one_call and format_.call_end:
        options = replace(options, stop=(*options.stop, format_.call_end))
    # With a grammar, everything that the model writes is content.
    parsed_as = format_ if grammar is None else AnswerFormat()
    spelling = None if logprobs is None else tokenizer.token_bytes

    def make_choice(index: int, _: Job) -> _ChatChoice:
        return _ChatChoice(index, AnswerParser(parsed_as, tools.offered or None, prompt), spelling)

    return respond(request, [Job(prompt, options)], _KIND, make_choice)


class _ChatChoice:
    """A choice of `/v1/chat/completions`; `spelling` is None if no log-probabilities are wanted."""

    def __init__(self, index: int, parser: AnswerParser, spelling: TokenBytes | None) -> None:
        self._index = index
        self._parser = parser
        self._spelling = spelling
        self._has_begun = False
        self._num_calls = 0

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        deltas = list(map(self._delta, self._parse(event.text, event.finish_reason)))
        if event.logprobs and not deltas:
            deltas = [{"content": ""}]
        if not self._has_begun:
            self._has_begun = True
            deltas = [{"role": "assistant", "content": ""}, *deltas]
        choices = [self._choice(delta) for delta in deltas]
        if event.logprobs:
            choices[-1]["logprobs"] = self._logprobs(event.logprobs)
        return choices

    def end(self, finish: Finish) -> dict[str, Any]:
        return self._choice({}) | {"finish_reason": self._finish_reason(finish)}

    def whole(self, completion: Completion) -> dict[str, Any]:
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
        content = logprob_entries(entries, partial(_logprob, self._spelling))
        return {"content": content, "refusal": None}

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def _logprob(spelling: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": spell(spelling, token),
        "bytes": list(spelling.of(token)),
        "logprob": bounded(logprob),
    }


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id or f"call_{uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


@dataclass(frozen=True)
class _Tools:
    """The tools that the model may call, in OpenAI's form.

    With `must_call`, the completion has to be a call; with `one_call`, it ends after the first.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    one_call: bool = False


def _read_tools(body: Body, *, model_has_tools: bool) -> _Tools:
    """`tools`, `tool_choice` and `parallel_tool_calls`.

    If the model's template has no tools, they are ignored, unless a call is required.

    Raises:
        BodyError: if a field cannot be served.
    """
    for name in ("functions", "function_call"):
        if body.has(name):
            body.refuse(name, "is obsolete; send `tools` and `tool_choice` instead")
    offered = read_offered_tools(body)
    may_call, must_call, name = _read_tool_choice(body)
    if must_call:
        if name:
            offered = [tool for tool in offered if tool["function"]["name"] == name]
            if not offered:
                body.refuse("tool_choice", "names a function that is not among `tools`")
        if not offered:
            body.refuse("tool_choice", "needs `tools` to choose from")
        if not model_has_tools:
            body.refuse("tool_choice", "cannot be served: this model's chat template has no tools")
    if not may_call or not model_has_tools:
        return _Tools()
    parallel = body.flag("parallel_tool_calls", default=True)
    return _Tools(tuple(offered), must_call, bool(offered) and not parallel)


def _read_tool_choice(body: Body) -> tuple[bool, bool, str]:
    """Whether a tool may be called, whether one must be called, and its name if it is given."""
    if isinstance(body.any("tool_choice"), dict):
        choice = body.object("tool_choice")
        function = choice.object("function") if choice.has("function") else choice
        name = function.text("name", default="")
        if not name:
            choice.refuse("function.name", "is missing")
        return True, True, name
    word = body.text("tool_choice", default="auto")
    if word not in ("auto", "none", "required"):
        body.refuse("tool_choice", "must be auto, none, required, or name a function")
    return word != "none", word == "required", ""


def _open_call(prompt: str, format_: AnswerFormat) -> str:
    """A prompt after which only a call can follow."""
    thought = f"{format_.think_end}\n\n" if format_.is_thinking(prompt) else ""
    return f"{prompt}{thought}{format_.call_start}"


def _read_logprobs(body: Body) -> int | None:
    """How many alternatives to report per token; None reports no log-probabilities."""
    wanted = body.flag("logprobs", default=False)
    alternatives = body.integer("top_logprobs", default=0, least=0, most=_MAX_TOP_LOGPROBS)
    if alternatives and not wanted:
        body.refuse("top_logprobs", "needs `logprobs` to be true")
    return alternatives if wanted else None


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


def _read_response_format(body: Body) -> Grammar | None:
    """OpenAI's three kinds; `json_object` may have a `schema`, as in llama-server."""
    given = body.object("response_format")
    kind = given.text("type", default="text")
    if kind == "text":
        return None
    if kind == "json_object":
        return _read_schema(given) if given.has("schema") else Grammar.json_object()
    if kind != "json_schema":
        given.refuse("type", "must be text, json_object or json_schema")
    return _read_schema(given.object("json_schema"))


def _read_schema(body: Body) -> Grammar:
    schema = body.any("schema")
    if not isinstance(schema, dict | bool):
        body.refuse("schema", "must be a JSON schema")
    return Grammar.json_schema(schema)
