"""Anthropic's Messages, which Claude Code and the `anthropic` libraries speak.

Content blocks become messages in OpenAI's form, which templates expect, and the answer becomes
blocks again. Tools that Anthropic's own service runs are refused; so is what is not text.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.request import Completion
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest, Contract, Endpoint
from akunu_py.server.conversation import (
    Block,
    Blocks,
    Conversation,
    Step,
    ToolChoice,
    select_tools,
)
from akunu_py.server.errors import ApiError
from akunu_py.server.fields import MAX_MESSAGES, MAX_TOOLS, read_stops
from akunu_py.server.openai_common import read_options
from akunu_py.server.wire import (
    EVENT_STREAM,
    FINISH_REASONS,
    CompactJSONResponse,
    StreamedResponse,
    WholeResponse,
    named_sse,
)
from akunu_py.stats import Stats

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}
_STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens"}


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}}`."""
    kind = _TYPES.get(error.status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


def messages(request: ApiRequest) -> Response:
    """`/v1/messages`: continues a conversation."""
    conversation = _read(request)
    service = request.service
    blocks = Blocks(conversation.parser())
    head = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": request.model_name,
    }

    async def chunks() -> AsyncGenerator[bytes, None]:
        completion = Completion("")
        async with aclosing(service.stream(conversation.job)) as events:
            async for event in events:
                if not completion.stats.prompt_tokens:
                    usage = _usage(event.stats) | {"output_tokens": 0}
                    empty: dict[str, Any] = {
                        "content": [],
                        "stop_reason": None,
                        "stop_sequence": None,
                    }
                    yield named_sse("message_start", {"message": head | empty | {"usage": usage}})
                    yield named_sse("ping", {})
                completion.add(event)
                for step in blocks.feed(event.text, ends=event.finish_reason is not None):
                    for name, fields in _events(step):
                        yield named_sse(name, {"index": step[1].index} | fields)
        delta = _ending(completion, blocks)
        yield named_sse("message_delta", {"delta": delta, "usage": _usage(completion.stats)})
        yield named_sse("message_stop", {})

    async def whole() -> dict[str, Any]:
        completion = await service.complete(conversation.job)
        list(blocks.feed(completion.text, ends=True))
        content = {"content": [_content(block) for block in blocks.done]}
        return head | content | _ending(completion, blocks) | {"usage": _usage(completion.stats)}

    if request.body.flag("stream", default=False):
        error_chunk = lambda error: named_sse("error", error_body(error))  # noqa: E731
        return StreamedResponse(chunks(), EVENT_STREAM, error_chunk)
    return WholeResponse(whole)


def count_tokens(request: ApiRequest) -> Response:
    """`/v1/messages/count_tokens`: how long the prompt of such a request is."""
    prompt = str(_read(request).job.prompt)
    return CompactJSONResponse({"input_tokens": len(request.engine.tokenizer.encode(prompt))})


ANTHROPIC: Final = Contract(
    name="anthropic",
    endpoints=(
        Endpoint("POST", "/v1/messages", messages),
        Endpoint("POST", "/v1/messages/count_tokens", count_tokens),
    ),
    error_body=error_body,
    prefixes=("/v1/messages",),
)


def _events(step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events for what happens to a block."""
    what, block, text = step
    if what == "start":
        empty = Block(block.index, block.kind, id=block.id, call=block.call)
        content = _content(empty) | ({"input": {}} if block.call else {})
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
        name, id_ = block.call.name, block.call.id or f"toolu_{block.id[:24]}"
        return {"type": "tool_use", "id": id_, "name": name, "input": block.call.input}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _ending(completion: Completion, blocks: Blocks) -> dict[str, Any]:
    """Why the answer ended."""
    reason = _STOP_REASONS[FINISH_REASONS[completion.finish_reason]]
    if blocks.has_calls and reason == "end_turn":
        return {"stop_reason": "tool_use", "stop_sequence": None}
    reason = "stop_sequence" if completion.stop else reason
    return {"stop_reason": reason, "stop_sequence": completion.stop}


def _usage(stats: Stats) -> dict[str, int]:
    """The prompt's tokens are counted apart, as computed and as found in a cache."""
    return {
        "input_tokens": stats.prompt_tokens - stats.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.generated_tokens,
    }


def _read(request: ApiRequest) -> Conversation:
    """A body as a conversation.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, engine = request.body, request.engine
    options = replace(read_options(request), stop=read_stops(body, "stop_sequences"))
    given = body.object("tool_choice")
    word = given.text("type", default="auto")
    if word not in ("auto", "any", "tool", "none"):
        given.refuse("type", "must be auto, any, tool or none")
    name = given.text("name", default="") if word == "tool" else ""
    choice = ToolChoice(word != "none", word in ("any", "tool"), name)
    tools = select_tools(
        body,
        [_tool(tool) for tool in body.objects("tools", most=MAX_TOOLS)],
        choice,
        parallel=not given.flag("disable_parallel_tool_use", default=False),
        model_has_tools=engine.tokenizer.answer_format.has_tools,
    )
    thinking = body.object("thinking").text("type", default=None)
    settings = {} if thinking is None else {"enable_thinking": thinking != "disabled"}
    return Conversation.begin(engine, _read_messages(body), options, tools, settings)


def _tool(tool: Body) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    if tool.text("type", default="custom") != "custom":
        tool.refuse("type", "must be custom: this server runs no tools of its own")
    tool.require("name")
    tool.object("input_schema").object("properties")
    function = {"name": tool.text("name", default=""), "parameters": tool.any("input_schema")}
    if tool.has("description"):
        function["description"] = tool.text("description", default="")
    return {"type": "function", "function": function}


def _read_messages(body: Body) -> list[dict[str, Any]]:
    """The conversation in OpenAI's form."""
    given = body.objects("messages", most=MAX_MESSAGES)
    if not given:
        body.refuse("messages", "must have at least one message")
    system = _text(body, "system")
    found: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in given:
        role = message.text("role", default="")
        if role not in ("user", "assistant", "system"):
            message.refuse("role", "must be user or assistant")
        found += _messages(message, role)
    return found


def _messages(message: Body, role: str) -> Iterator[dict[str, Any]]:
    """What a message is in OpenAI's form: results of tools are messages of their own there."""
    if not isinstance(message.any("content"), list):
        yield {"role": role, "content": message.text("content", default="")}
        return
    texts, calls, thoughts, has_results = [], [], [], False
    for block in message.objects("content"):
        kind = block.text("type", default="text")
        if kind == "text":
            texts.append(block.text("text", default=""))
        elif kind == "tool_use":
            function = {
                "name": block.text("name", default=""),
                "arguments": block.any("input") or {},
            }
            calls.append(
                {"id": block.text("id", default=""), "type": "function", "function": function}
            )
        elif kind == "tool_result":
            has_results = True
            id_ = block.text("tool_use_id", default="")
            yield {"role": "tool", "tool_call_id": id_, "content": _text(block, "content")}
        elif kind == "thinking":
            thoughts.append(block.text("thinking", default=""))
        elif kind != "redacted_thinking":
            block.refuse("type", "must be text, tool_use, tool_result or thinking")
    if texts or calls or not has_results:
        said: dict[str, Any] = {"role": role, "content": "".join(texts)}
        said |= {"tool_calls": calls} if calls else {}
        yield said | ({"reasoning_content": "".join(thoughts)} if thoughts else {})


def _text(body: Body, name: str) -> str:
    """A text, or a list of blocks that are all text, which are separate paragraphs."""
    if not isinstance(body.any(name), list):
        return body.text(name, default="")
    texts = []
    for block in body.objects(name):
        if block.text("type", default="text") != "text":
            block.refuse("type", "must be text; this model reads nothing else")
        texts.append(block.text("text", default=""))
    return "\n\n".join(texts)
