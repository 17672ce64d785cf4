"""Anthropic's Messages API, which Claude Code and the `anthropic` libraries use.

Content blocks become messages in OpenAI's form, which templates expect, and the answer becomes
blocks again. Tools that Anthropic's own service runs are refused, and so is everything but text.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import Grammar
from akunu_py.rounds import Stats
from akunu_py.server.body import Body
from akunu_py.server.conversation import (
    MAX_TOOLS,
    Blocks,
    ChatJob,
    Message,
    Tools,
    call_of,
    check_arguments,
    merged,
    offered,
    select_tools,
    some_messages,
)
from akunu_py.server.conversation import count_tokens as count
from akunu_py.server.dialect import OPENAI, read_effort, read_options
from akunu_py.server.errors import ApiError
from akunu_py.server.grammars import read_format
from akunu_py.server.service import Service
from akunu_py.server.wire import Endpoint, JobAnswer, Reply, finish_word, named_sse, new_id
from akunu_py.text.answer_parser import Block, Step

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_CHOICES: Final = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
"""The words of `tool_choice`, and OpenAI's equivalents."""


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}}`."""
    kind = _TYPES.get(error.status, "invalid_request_error")
    message = error.message
    if tokens := error.facts.get("n_prompt_tokens"):
        # Claude Code shortens a conversation when it sees these words.
        message = f"prompt is too long: {tokens} tokens > {error.facts['n_ctx']} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


def report(error: ApiError) -> bytes:
    """The event for an error in a stream."""
    return named_sse("error", error_body(error))


def _answer(service: Service, body: Body) -> Response:
    job = _read(service, body)
    reply = _Reply(job.blocks(), service.model_name)
    return JobAnswer(service, [job], reply, streams=body.flag("stream", default=False))


def _count_tokens(service: Service, body: Body) -> Response:
    return count(service, _read(service, body))


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/messages", _answer),
    Endpoint("POST", "/v1/messages/count_tokens", _count_tokens, needs=None),
)


class _Reply(Reply):
    def __init__(self, blocks: Blocks, model: str) -> None:
        self._blocks = blocks
        self._head = {"id": new_id("msg_"), "type": "message", "role": "assistant", "model": model}

    def begin(self, stats: Stats) -> Iterator[bytes]:
        usage = _usage(stats) | {"output_tokens": 0}
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        yield named_sse("message_start", {"message": self._head | empty | {"usage": usage}})
        yield self.keep_alive()

    def keep_alive(self) -> bytes:
        return named_sse("ping", {})

    def feed(self, _: int, event: Event) -> Iterator[bytes]:
        for step in self._blocks.feed(event):
            for name, fields in _events(step):
                yield named_sse(name, {"index": step[1].index} | fields)
        if event.finish_reason is not None:
            delta, usage = self._ending(event), _usage(event.stats)
            yield named_sse("message_delta", {"delta": delta, "usage": usage})
            yield named_sse("message_stop", {})

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        (completion,) = completions
        self._blocks.take_all(completion)
        content = {"content": [_content(block) for block in self._blocks.done]}
        ending = self._ending(completion)
        return self._head | content | ending | {"usage": _usage(completion.stats)}

    def report(self, error: ApiError) -> bytes:
        return report(error)

    def _ending(self, source: Event | Completion) -> dict[str, Any]:
        if finish_word(source.finish_reason) == "length":
            reason = "max_tokens"
        elif self._blocks.has_whole_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        else:
            reason = "end_turn"
        stop = self._blocks.stop_of(source)
        return {"stop_reason": "stop_sequence" if stop else reason, "stop_sequence": stop}


def _events(step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
    what, block, text = step
    if what == "start":
        content = _content(block) | ({"input": {}} if block.call else {})
        yield "content_block_start", {"content_block": content}
    elif what == "stop":
        if block.kind == "reasoning":
            yield "content_block_delta", {"delta": {"type": "signature_delta", "signature": ""}}
        yield "content_block_stop", {}
    elif block.kind == "call":
        yield "content_block_delta", {"delta": {"type": "input_json_delta", "partial_json": text}}
    else:
        kind = "thinking" if block.kind == "reasoning" else "text"
        yield "content_block_delta", {"delta": {"type": f"{kind}_delta", kind: text}}


def _content(block: Block) -> dict[str, Any]:
    """A content block. The input of a call is always an object, because clients read it as one."""
    if block.call is not None:
        return {"type": "tool_use", "id": block.call_id("toolu_"), "name": block.call.name,
                "input": block.call.input}  # fmt: skip
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _usage(stats: Stats) -> dict[str, int]:
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated_tokens,
    }


def _read(service: Service, body: Body) -> ChatJob:
    grammar = _read_format(body)
    options = read_options(service, body, OPENAI, stops="stop_sequences", grammar=grammar)
    tools = _read_tools(body)
    thinking = body.object("thinking").text("type", default=None)
    budget = body.object("thinking").integer("budget_tokens", default=None, least=1)
    settings = read_effort(body.object("output_config"))
    settings |= {} if thinking is None else {"enable_thinking": thinking != "disabled"}
    tokenizer, messages = service.engine.tokenizer, _read_messages(body)
    return ChatJob.begin(tokenizer, messages, options, tools, settings, budget=budget)


def _read_format(body: Body) -> Grammar | None:
    """The format of an answer: `output_config`, or `output_format`, its earlier name."""
    holder, name = body, "output_format"
    if body.object("output_config").has("format"):
        holder, name = body.object("output_config"), "format"
    if holder.has(name) and holder.object(name).text("type", default="") != "json_schema":
        holder.refuse(f"{name}.type", "must be json_schema")
    return read_format(holder, name)


def _read_tools(body: Body) -> Tools:
    """The tools, and which of them may or must be called, in OpenAI's form."""
    given = body.object("tool_choice")
    word = given.text("type", default="auto")
    if word not in _CHOICES:
        given.refuse("type", "must be auto, any, tool or none")
    choice: Any = _CHOICES[word]
    if word == "tool":
        given.require("name")
        choice = {"type": "allowed_tools", "mode": choice,
                  "tools": [{"name": given.text("name", default="")}]}  # fmt: skip
    parallel = not given.flag("disable_parallel_tool_use", default=False) and word != "tool"
    tools = [_tool(tool) for tool in body.objects("tools", most=MAX_TOOLS)]
    return select_tools(Body({"tool_choice": choice, "parallel_tool_calls": parallel}), tools)


def _tool(tool: Body) -> dict[str, Any]:
    if tool.text("type", default="custom") != "custom":
        tool.refuse("type", "must be custom: this server runs no tools of its own")
    return offered(tool.only("name", "description", "input_schema", "strict"), "input_schema")


def _read_messages(body: Body) -> list[Message]:
    system = body.joined("system")
    found: list[Message] = [{"role": "system", "content": system}] if system else []
    messages = some_messages(body)
    lists = (each for each in messages if isinstance(each.any("content"), list))
    check_arguments((block for each in lists for block in each.objects("content")), "input")
    for message in messages:
        role = message.text("role", default="")
        if role not in ("user", "assistant", "system"):
            message.refuse("role", "must be user or assistant")
        found += _messages(message, role)
    return merged(found)


def _messages(message: Body, role: str) -> Iterator[Message]:
    """A message in OpenAI's form, where results of tools are separate messages."""
    if not isinstance(message.any("content"), list):
        yield {"role": role, "content": message.text("content", default="")}
        return
    texts, calls, thoughts, has_results = [], [], [], False
    for block in message.objects("content"):
        kind = block.text("type", default="text")
        if kind == "text":
            texts.append(block.text("text", default=""))
        elif kind == "tool_use":
            calls.append(call_of(block, block.text("id", default=""), "input"))
        elif kind == "tool_result":
            has_results = True
            id_ = block.text("tool_use_id", default="")
            content = block.joined("content")
            yield {"role": "tool", "tool_call_id": id_, "content": content}
        elif kind == "thinking":
            thoughts.append(block.text("thinking", default=""))
        elif kind != "redacted_thinking":
            block.refuse("type", "must be text, tool_use, tool_result or thinking")
    if texts or calls or not has_results:
        joint = "" if role == "assistant" else "\n\n"  # its own text stays unchanged
        said: Message = {"role": role, "content": joint.join(texts)}
        said |= {"tool_calls": calls} if calls else {}
        yield said | ({"reasoning_content": "".join(thoughts)} if thoughts else {})
