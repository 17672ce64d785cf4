"""OpenAI's Responses, which Codex, the `openai` libraries and the AI SDK speak.

Items become messages in the form of chat completions, which templates expect, and the blocks of an
answer become items again. Tools that OpenAI's own service runs are left out. Codex's custom tools
and its shell are offered as functions.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from itertools import count
from time import time
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.request import Completion
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.conversation import (
    Block,
    Blocks,
    Conversation,
    Step,
    ToolChoice,
    select_tools,
)
from akunu_py.server.errors import ApiError, NotFoundError
from akunu_py.server.fields import MAX_MESSAGES, MAX_TOOLS, read_offered_tools
from akunu_py.server.openai_common import read_grammar, read_options
from akunu_py.server.wire import (
    EVENT_STREAM,
    FINISH_REASONS,
    CompactJSONResponse,
    StreamedResponse,
    WholeResponse,
    compact_json,
    named_sse,
)

_STORED_BYTES: Final = 64 << 20
_INPUT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_SHELL: Final = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["command"],
}
_SHELL_NAME: Final = "local_shell"
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "summary_text")

Message = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    """A response, and the conversation that a next one continues."""

    response: dict[str, Any]
    messages: list[Message]
    nbytes: int


class ResponseStore:
    """The latest responses, in memory only; beyond a number of bytes the oldest are dropped."""

    def __init__(self, most: int = _STORED_BYTES) -> None:
        self._most = most
        self._nbytes = 0
        self._responses: OrderedDict[str, Stored] = OrderedDict()

    def add(self, response: dict[str, Any], messages: list[Message]) -> None:
        """Keeps a response, if it is not too long on its own."""
        stored = Stored(response, messages, len(compact_json([response, messages])))
        self._responses[response["id"]] = stored
        self._nbytes += stored.nbytes
        while self._nbytes > self._most:
            self._nbytes -= self._responses.popitem(last=False)[1].nbytes

    def get(self, name: str) -> Stored:
        """A response.

        Raises:
            NotFoundError: if there is none with that id.
        """
        if name not in self._responses:
            raise NotFoundError(f"There is no response {name[:80]!r}; it was not kept, or deleted.")
        return self._responses[name]

    def remove(self, name: str) -> None:
        """Forgets a response; see `get`."""
        self._nbytes -= self.get(name).nbytes
        del self._responses[name]


def show_response(request: ApiRequest) -> Response:
    """`GET /v1/responses/ID`."""
    return CompactJSONResponse(request.responses.get(request.path_params["id"]).response)


def delete_response(request: ApiRequest) -> Response:
    """`DELETE /v1/responses/ID`."""
    name = request.path_params["id"]
    request.responses.remove(name)
    return CompactJSONResponse({"id": name, "object": "response", "deleted": True})


def respond(request: ApiRequest) -> Response:
    """`/v1/responses`: continues a conversation."""
    body, engine, service = request.body, request.engine, request.service
    for name in ("background", "conversation", "prompt"):
        if body.any(name):
            body.refuse(name, "is not served")
    if body.text("truncation", default="disabled") != "disabled":
        body.refuse("truncation", "must be disabled: nothing is left out of a conversation")
    options = replace(
        read_options(request, grammar=read_grammar(body.object("text"), "format")),
        stop=(),
    )
    longest = body.integer("max_output_tokens", default=options.max_tokens, least=1)
    kinds, tools = _read_tools(body, model_has_tools=engine.tokenizer.answer_format.has_tools)
    if options.grammar is not None and tools.offered:
        body.refuse("text.format", "cannot be combined with `tools`")
    earlier = body.text("previous_response_id", default=None)
    history = [] if earlier is None else request.responses.get(earlier).messages
    history = [*history, *_read_input(body)]
    instructions = body.text("instructions", default=None)
    opening = [{"role": "system", "content": instructions}] if instructions else []
    effort = body.object("reasoning").text("effort", default=None)
    conversation = Conversation.begin(
        engine,
        _merged([*opening, *history]),
        replace(options, max_tokens=longest),
        tools,
        {} if effort is None else {"reasoning_effort": effort},
    )
    items = _Items(Blocks(conversation.parser()), kinds)
    keeps = body.flag("store", default=True)
    head = {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": instructions,
        "max_output_tokens": body.any("max_output_tokens"),
        "metadata": body.any("metadata") or {},
        "model": engine.model.name,
        "output": [],
        "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
        "previous_response_id": earlier,
        "reasoning": {"effort": effort, "summary": None},
        "store": keeps,
        "temperature": options.sampling.temperature,
        "text": {"format": body.object("text").any("format") or {"type": "text"}},
        "tool_choice": body.any("tool_choice") or "auto",
        "tools": body.any("tools") or [],
        "top_p": options.sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.any("user"),
    }

    numbers = count()

    def event(name: str, fields: Mapping[str, Any]) -> bytes:
        return named_sse(f"response.{name}", {"sequence_number": next(numbers), **fields})

    def failed(error: ApiError) -> bytes:
        what = {"code": error.kind, "message": error.message}
        return event("failed", {"response": head | {"status": "failed", "error": what}})

    def final(completion: Completion) -> dict[str, Any]:
        response = head | _ending(completion) | {"output": items.done}
        if keeps:
            request.responses.add(response, [*history, items.as_message()])
        return response

    async def chunks() -> AsyncGenerator[bytes, None]:
        completion = Completion("")
        async with aclosing(service.stream(conversation.job)) as events:
            async for each in events:
                if not completion.stats.prompt_tokens:
                    yield event("created", {"response": head})
                    yield event("in_progress", {"response": head})
                completion.add(each)
                for name, fields in items.feed(each.text, ends=each.finish_reason is not None):
                    yield event(name, fields)
        response = final(completion)
        yield event(response["status"], {"response": response})

    async def whole() -> dict[str, Any]:
        completion = await service.complete(conversation.job)
        list(items.feed(completion.text, ends=True))
        return final(completion)

    if body.flag("stream", default=False):
        return StreamedResponse(chunks(), EVENT_STREAM, failed)
    return WholeResponse(whole)


def _ending(completion: Completion) -> dict[str, Any]:
    """How a response ended, and its usage."""
    stats = completion.stats
    cut = FINISH_REASONS[completion.finish_reason] == "length"
    return {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "usage": {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.cached_tokens},
            "output_tokens": stats.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": stats.prompt_tokens + stats.generated_tokens,
        },
    }


class _Items:
    """The output items of an answer, and the events that tell how they grow."""

    def __init__(self, blocks: Blocks, kinds: Mapping[str, str]) -> None:
        self._blocks = blocks
        self._kinds = kinds

    @property
    def done(self) -> list[dict[str, Any]]:
        """The items that are complete."""
        return [self._item(block, "completed") for block in self._blocks.done]

    def as_message(self) -> Message:
        """The whole answer as a message of the conversation."""
        done = self._blocks.done
        calls = [
            {
                "id": item["call_id"],
                "type": "function",
                "function": {
                    "name": block.call.name,
                    "arguments": json.loads(block.call.arguments),
                },
            }
            for block, item in zip(done, self.done, strict=True)
            if block.call is not None
        ]
        said = "".join(block.text for block in done if block.kind == "text")
        return {"role": "assistant", "content": said} | ({"tool_calls": calls} if calls else {})

    def feed(self, text: str, *, ends: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Takes the next text of the answer and returns the events for it."""
        for step in self._blocks.feed(text, ends=ends):
            yield from self._events(step)

    def _events(self, step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
        what, block, text = step
        item = self._item(block, "completed" if what == "stop" else "in_progress")
        place = {"output_index": block.index, "item_id": item["id"]}
        if block.call is not None:
            field = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
            name = "function_call_arguments" if field == "arguments" else "custom_tool_call_input"
            if what == "delta":
                if field is not None:
                    yield f"{name}.delta", place | {"delta": item[field]}
                return
            if what == "stop" and field is not None:
                yield f"{name}.done", place | {"name": block.call.name, field: item[field]}
            if what == "start" and field is not None:
                item |= {field: ""}
        else:
            place |= {"content_index": 0}
            name = "output_text" if block.kind == "text" else "reasoning_text"
            (part,) = item["content"] or [None]
            extra = {"logprobs": []} if block.kind == "text" else {}
            if what == "delta":
                yield f"{name}.delta", place | {"delta": text} | extra
                return
            if what == "stop":
                yield f"{name}.done", place | {"text": block.text} | extra
                yield "content_part.done", place | {"part": part}
        if what == "stop":
            yield "output_item.done", {"output_index": block.index, "item": item}
            return
        opened = item | ({"content": []} if block.call is None else {})
        yield "output_item.added", {"output_index": block.index, "item": opened}
        if block.call is None:
            yield "content_part.added", place | {"part": item["content"][0]}

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        if block.call is not None:
            return self._call(block, status)
        if block.kind == "reasoning":
            content = [{"type": "reasoning_text", "text": block.text}]
            return {"id": f"rs_{block.id}", "type": "reasoning", "summary": [],
                    "content": content, "encrypted_content": None, "status": status}  # fmt: skip
        content = [{"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}]
        return {"id": f"msg_{block.id}", "type": "message", "role": "assistant",
                "content": content, "status": status}  # fmt: skip

    def _call(self, block: Block, status: str) -> dict[str, Any]:
        """A call, in the form of the tool that it calls."""
        assert block.call is not None
        name, arguments = block.call.name, block.call.arguments
        head = {"call_id": block.call.id or f"call_{block.id[:24]}", "status": status}
        kind = self._kinds.get(name, "function")
        given = json.loads(arguments)
        given = given if isinstance(given, dict) else {}
        if kind == "custom":
            text = str(given.get("input", ""))
            own = {"id": f"ctc_{block.id}", "type": "custom_tool_call", "name": name, "input": text}
        elif kind == _SHELL_NAME:
            action = {"type": "exec", "command": [], "env": {}} | given
            own = {"id": f"lsh_{block.id}", "type": "local_shell_call", "action": action}
        else:
            own = {"id": f"fc_{block.id}", "type": "function_call", "name": name,
                   "arguments": arguments}  # fmt: skip
        return head | own


def _read_tools(body: Body, *, model_has_tools: bool) -> tuple[dict[str, str], Any]:
    """The kind of each tool by its name, and the tools as functions."""
    kinds: dict[str, str] = {}
    functions: list[dict[str, Any]] = []
    for tool in body.objects("tools", most=MAX_TOOLS):
        kind = tool.text("type", default="function")
        if kind not in ("function", "custom", _SHELL_NAME):
            continue  # OpenAI's service would run it; Codex offers such tools to every model
        function = {name: tool.any(name) for name in ("name", "description") if tool.has(name)}
        if kind == "function":
            function["parameters"] = tool.any("parameters") or {}
        elif kind == "custom":
            function["parameters"] = _INPUT
            if tool.object("format").has("definition"):
                grammar = tool.object("format").text("definition", default="")
                function["description"] = f"{function.get('description', '')}\n{grammar}"
        else:
            function |= {"name": _SHELL_NAME, "parameters": _SHELL,
                         "description": "Runs a command on the user's machine."}  # fmt: skip
        functions.append({"type": "function", "function": function})
        kinds[str(function.get("name"))] = kind
    offered = read_offered_tools(Body({"tools": functions}, body.limits))
    choice = body.any("tool_choice")
    if isinstance(choice, dict):
        given = body.object("tool_choice")
        if given.text("type", default="") == "allowed_tools":
            names = {tool.text("name", default="") for tool in given.objects("tools")}
            offered = [tool for tool in offered if tool["function"]["name"] in names]
            selected = ToolChoice(must_call=given.any("mode") == "required")
        else:
            name = given.text("name", default="") or given.text("type", default="")
            selected = ToolChoice(must_call=True, name=name)
    else:
        word = body.text("tool_choice", default="auto")
        if word not in ("auto", "none", "required"):
            body.refuse("tool_choice", "must be auto, none, required, or name a tool")
        selected = ToolChoice(may_call=word != "none", must_call=word == "required")
    parallel = body.flag("parallel_tool_calls", default=True)
    return kinds, select_tools(
        body, offered, selected, parallel=parallel, model_has_tools=model_has_tools
    )


def _read_input(body: Body) -> list[Message]:
    """`input`: a text, or items."""
    body.require("input")
    if not isinstance(body.any("input"), list):
        return [{"role": "user", "content": body.text("input", default="")}]
    items = body.objects("input", most=MAX_MESSAGES)
    found = [message for item in items for message in _messages(item)]
    if not found:
        body.refuse("input", "must have at least one message")
    return found


def _messages(item: Body) -> Iterator[Message]:
    """The message of an item; none for reasoning, which models do not read again."""
    kind = item.text("type", default="message")
    if kind == "message":
        role = item.text("role", default="user")
        role = "system" if role == "developer" else role
        yield {"role": role, "content": _text(item, "content")}
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        name = _SHELL_NAME if kind == "local_shell_call" else item.text("name", default="")
        arguments: Any = item.any("arguments")
        if kind == "custom_tool_call":
            arguments = {"input": item.text("input", default="")}
        elif kind == "local_shell_call":
            arguments = {"command": item.object("action").values("command")}
        elif isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        call = {"id": item.text("call_id", default=""), "type": "function",
                "function": {"name": name, "arguments": arguments}}  # fmt: skip
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        id_ = item.text("call_id", "id", default="")
        yield {"role": "tool", "tool_call_id": id_, "content": _text(item, "output")}
    elif kind == "item_reference":
        item.refuse("type", "cannot be served; send the item, or `previous_response_id`")


def _text(item: Body, name: str) -> str:
    """A text, or a list of parts that are all text."""
    if not isinstance(item.any(name), list):
        return item.text(name, default="")
    texts = []
    for part in item.objects(name):
        if part.text("type", default="") not in _TEXTS:
            part.refuse("type", "must be text; this model reads nothing else")
        texts.append(part.text("text", "refusal", default=""))
    return "".join(texts)


def _merged(messages: list[Message]) -> list[Message]:
    """Messages in which what the assistant says and calls in one turn is one message, and system
    messages at the beginning are one, because many templates know only one."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is not None and last["role"] == message["role"] == "assistant":
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            last["content"] += message["content"]
            last |= {"tool_calls": calls} if calls else {}
        elif last is not None and len(found) == 1 and last["role"] == message["role"] == "system":
            last["content"] += f"\n\n{message['content']}"
        else:
            found.append(dict(message))
    return found
