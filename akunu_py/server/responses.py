"""OpenAI's Responses API, which Codex, the `openai` libraries and the AI SDK use.

The blocks of an answer become items, streamed as typed events or sent whole. Codex's custom tools
and its shell are offered to the model as functions; tools that OpenAI's own service runs are left
out. Nothing is stored: each request has the whole conversation.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from time import time
from typing import Any, Final, NoReturn

from starlette.responses import Response

from akunu_py.errors import ContextOverflowError
from akunu_py.events import Completion, Event
from akunu_py.rounds import Stats
from akunu_py.server.body import Body
from akunu_py.server.conversation import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatJob,
    Message,
    Tools,
    call_of,
    check_arguments,
    count_tokens,
    made_call,
    merged,
    read_offered_tools,
    select_tools,
)
from akunu_py.server.dialect import OPENAI, read_effort, read_options
from akunu_py.server.errors import ApiError, NotFoundError
from akunu_py.server.grammars import read_format
from akunu_py.server.pool import Pool
from akunu_py.server.service import Service
from akunu_py.server.wire import (
    Endpoint,
    JobAnswer,
    PoolEndpoint,
    Reply,
    compact_json,
    finish_word,
    named_sse,
    new_id,
    prompt_progress,
    timings,
)
from akunu_py.text.answer_parser import Block, Step

_DIALECT: Final = replace(OPENAI, limits=("max_output_tokens", *OPENAI.limits))
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
_ID_PREFIXES: Final = {"text": "msg_", "reasoning": "rs_", "function": "fc_", "custom": "ctc_",
                       _SHELL_NAME: "lsh_"}  # fmt: skip
_STREAMED: Final = {
    "text": ("output_text", "text"),
    "reasoning": ("reasoning_text", "text"),
    "function": ("function_call_arguments", "arguments"),
    "custom": ("custom_tool_call_input", "input"),
}
"""The names of the events for each kind of item, and the field that they fill."""
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "summary_text")
_MAX_ECHO: Final = 1 << 16
"""Bytes of a field that every event of a stream repeats, as JSON; a longer one is left out."""
_UNSTORED: Final = "this server stores no responses; send the whole conversation as `input`"


def report(error: ApiError) -> bytes:
    """The event for an error in a stream that has no response yet."""
    what = {"code": error.kind, "message": error.message}
    failed = {"id": new_id("resp_"), "object": "response", "status": "failed", "error": what}
    return named_sse("response.failed", {"sequence_number": 0, "response": failed})


def _respond(service: Service, body: Body) -> Response:
    job, kinds = _read(service, body)
    reply = _Reply(service, body, job, kinds)
    return JobAnswer(service, [job], reply, streams=body.flag("stream", default=False))


def _count_tokens(service: Service, body: Body) -> Response:
    return count_tokens(service, _read(service, body)[0], object="response.input_tokens")


def _refuse_stored(_pool: Pool, _path: Body) -> NoReturn:
    raise NotFoundError(f"There is no such response: {_UNSTORED}.")


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/responses", _respond),
    Endpoint("POST", "/responses", _respond),
    Endpoint("POST", "/v1/responses/input_tokens", _count_tokens, needs=None),
    PoolEndpoint("GET", "/v1/responses/{id:path}", _refuse_stored),
    PoolEndpoint("DELETE", "/v1/responses/{id:path}", _refuse_stored),
)


def _read(service: Service, body: Body) -> tuple[ChatJob, dict[str, str]]:
    """A body as a job, and the kinds of its tools by their names."""
    for name in ("background", "conversation", "prompt"):
        if body.any(name):
            body.refuse(name, "is not supported")
    if body.text("previous_response_id", default=None) is not None:
        body.refuse("previous_response_id", f"is not supported: {_UNSTORED}")
    if body.integer("top_logprobs", default=0):
        body.refuse("top_logprobs", "is not supported here; chat completions have it")
    if "message.output_text.logprobs" in body.texts("include"):
        body.refuse("include", "cannot have log-probabilities here; chat completions have them")
    truncation = body.text("truncation", default="disabled")
    if truncation not in ("disabled", "auto"):
        body.refuse("truncation", "must be disabled or auto")
    body.flag("store", default=False)  # refuses what is no flag
    body.integer("max_output_tokens", default=None, least=1)
    grammar = read_format(body.object("text"), "format")
    options = read_options(service, body, _DIALECT, grammar=grammar)
    engine = service.engine
    kinds, tools = _read_tools(body)
    messages = _read_input(body)
    instructions = body.text("instructions", default=None)
    opening = [{"role": "system", "content": instructions}] if instructions else []
    settings = read_effort(body.object("reasoning"))
    ways = [merged([*opening, *messages])]  # with fewer and fewer turns, if it may be truncated
    while truncation == "auto" and (rest := _without_oldest(ways[-1])):
        ways.append(rest)
    room = engine.context_limit - min(options.max_tokens or 1, engine.context_limit // 2)

    def begun(way: int) -> ChatJob:
        return ChatJob.begin(engine.tokenizer, ways[way], options, tools, settings)

    def fits(way: int) -> bool:
        try:
            return len(engine.tokenizer.encode(str(begun(way).prompt), most=room)) <= room
        except ContextOverflowError:
            return False

    # Each trial renders the rest, so there must be few; the last way is not tried.
    return begun(bisect_left(range(len(ways) - 1), True, key=fits)), kinds


def _read_tools(body: Body) -> tuple[dict[str, str], Tools]:
    """The kind of each tool by its name, and the tools as functions."""
    kinds: dict[str, str] = {}
    functions: list[dict[str, Any]] = []
    for tool in body.objects("tools", most=MAX_TOOLS):
        kind = tool.text("type", default="function")
        if kind not in ("function", "custom", _SHELL_NAME):
            continue  # OpenAI's service would run it; Codex offers such tools to every model
        function = {
            name: tool.any(name) for name in ("name", "description", "strict") if tool.has(name)
        }
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
    return kinds, select_tools(body, read_offered_tools(Body({"tools": functions})))


def _read_input(body: Body) -> list[Message]:
    body.require("input")
    if not isinstance(body.any("input"), list):
        return [{"role": "user", "content": body.text("input", default="")}]
    items = body.objects("input", most=MAX_MESSAGES)
    check_arguments(items)
    found = [message for item in items for message in _messages(item)]
    if not found:
        body.refuse("input", "must have at least one message")
    return found


def _messages(item: Body) -> Iterator[Message]:
    """The message of an item; none for reasoning, which models do not read again, and for calls
    that OpenAI's service ran itself."""
    kind = item.text("type", default="message")
    if item.has("id") and not item.has("type", "role", "content"):
        kind = "item_reference"
    if kind == "message":
        item.require("content")
        role = item.text("role", default="user")
        if role not in _ROLES:
            item.refuse("role", "must be user, assistant, system or developer")
        role = "system" if role == "developer" else role
        yield {"role": role, "content": item.joined("content", _TEXTS)}
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        id_ = item.text("call_id", default="")
        item.require(*(["action"] if kind == "local_shell_call" else ["name"]))
        if kind == "function_call":
            call = call_of(item, id_)
        elif kind == "custom_tool_call":
            text = item.text("input", default="")
            call = made_call(item.text("name", default=""), {"input": text}, id_)
        else:
            words = item.object("action").values("command")
            call = made_call(_SHELL_NAME, {"command": words}, id_)
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        id_ = item.text("call_id", "id", default="")
        item.require("output")
        yield {"role": "tool", "tool_call_id": id_, "content": item.joined("output", _TEXTS)}
    elif kind == "item_reference":
        item.refuse("id", f"is only a reference to an item: {_UNSTORED}, with `store` false")
    elif kind != "reasoning" and not kind.endswith("_call"):
        item.refuse("type", "is not supported")


def _without_oldest(messages: list[Message]) -> list[Message]:
    """The messages without the oldest turn, which reaches to the second user message; system
    messages at the beginning stay. Empty if there is no second user message."""
    first = next((at for at, each in enumerate(messages) if each["role"] != "system"), 0)
    turns = [at for at, each in enumerate(messages) if each["role"] == "user" and at > first]
    return [*messages[:first], *messages[turns[0] :]] if turns else []


def _echo(value: Any) -> Any:
    """A field of the request as the response repeats it; None if it is too long."""
    return value if len(compact_json(value)) <= _MAX_ECHO else None


class _Reply(Reply):
    def __init__(
        self, service: Service, body: Body, job: ChatJob, kinds: Mapping[str, str]
    ) -> None:
        self._blocks = job.blocks()
        self._kinds = kinds
        self._times_tokens = body.flag("timings_per_token", default=False)
        self._numbers = count()
        self._head = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": _echo(body.any("instructions")),
            "max_output_tokens": body.any("max_output_tokens"),
            "metadata": _echo(body.any("metadata")) or {},
            "model": service.model_name,
            "output": [],
            "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
            "previous_response_id": None,
            "reasoning": {"effort": _echo(body.object("reasoning").any("effort")), "summary": None},
            "store": False,
            "temperature": job.options.temperature,
            "text": {"format": _echo(body.object("text").any("format")) or {"type": "text"}},
            "tool_choice": _echo(body.any("tool_choice")) or "auto",
            "tools": _echo(body.any("tools")) or [],
            "top_p": job.options.top_p,
            "truncation": body.text("truncation", default="disabled"),
            "usage": None,
            "user": _echo(body.any("user")),
        }

    def begin(self, stats: Stats) -> Iterator[bytes]:
        yield self._event("created", {"response": self._head})
        yield self.keep_alive()

    def keep_alive(self) -> bytes:  # Codex counts events, but not comments
        return self._event("in_progress", {"response": self._head})

    def feed(self, _: int, event: Event) -> Iterator[bytes]:
        if progress := prompt_progress(event):
            yield self._event("in_progress", {"response": self._head} | progress)
        timed = {"timings": timings(event.stats)} if self._times_tokens else {}
        for step in self._blocks.feed(event):
            for name, fields in self._events(step):
                yield self._event(name, fields | (timed if name.endswith(".delta") else {}))
        if event.finish_reason is not None:
            response = self._final(event)
            timed = {"timings": timings(event.stats)} if self._times_tokens else {}
            yield self._event(response["status"], {"response": response} | timed)

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        (completion,) = completions
        self._blocks.take_all(completion)
        return self._final(completion)

    def report(self, error: ApiError) -> bytes:
        what = {"code": error.kind, "message": error.message}
        return self._event("failed", {"response": self._head | {"status": "failed", "error": what}})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return named_sse(f"response.{name}", {"sequence_number": next(self._numbers), **fields})

    def _final(self, source: Event | Completion) -> dict[str, Any]:
        """The whole response. It is `incomplete` if a stop string has cut a call, because clients
        parse all calls of a complete one."""
        stats, reason = source.stats, None
        if finish_word(source.finish_reason) == "length":
            reason = "max_output_tokens"
        elif any(block.cut for block in self._blocks.calls):
            reason = "stop"
        return self._head | {
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {"cached_tokens": stats.cached_tokens},
                "output_tokens": stats.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": stats.reasoning_tokens},
                "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            },
            "output": [
                self._item(self._kind(block), block, _status(block)) for block in self._blocks.done
            ],
        }

    def _events(self, step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
        what, block, text = step
        kind = self._kind(block)
        place: dict[str, Any] = {"output_index": block.index, "item_id": _item_id(kind, block)}
        place |= {"content_index": 0} if block.call is None else {}
        name, field = _STREAMED.get(kind, ("", ""))
        extra: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        if what == "delta":
            if kind not in ("custom", _SHELL_NAME):  # their form is known only at the end
                yield f"{name}.delta", place | {"delta": text} | extra
            return
        item = self._item(kind, block, _status(block) if what == "stop" else "in_progress")
        output = {"output_index": block.index, "item": item}
        if what == "start":
            opened = item | ({"content": []} if block.call is None else {})
            yield "output_item.added", output | {"item": opened}
            if block.call is None:
                yield "content_part.added", place | {"part": item["content"][0]}
            return
        if block.call is None:
            yield f"{name}.done", place | {"text": block.text} | extra
            yield "content_part.done", place | {"part": item["content"][0]}
        elif field:
            if kind == "custom":
                yield f"{name}.delta", place | {"delta": item[field]}
            yield f"{name}.done", place | {"name": block.call.name, field: item[field]}
        yield "output_item.done", output

    def _kind(self, block: Block) -> str:
        if block.call is None:
            return block.kind
        return self._kinds.get(block.call.name, "function")

    def _item(self, kind: str, block: Block, status: str) -> dict[str, Any]:
        head: dict[str, Any] = {"id": _item_id(kind, block), "status": status}
        if kind == "reasoning":
            content = [{"type": "reasoning_text", "text": block.text}]
            more: dict[str, Any] = {"summary": [], "encrypted_content": None}
            return head | {"type": "reasoning", "content": content} | more
        if block.call is None:
            part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
            return head | {"type": "message", "role": "assistant", "content": [part]}
        call = block.call
        head |= {"call_id": block.call_id("call_")}
        if kind == "custom":
            text = str(call.input.get("input", ""))
            return head | {"type": "custom_tool_call", "name": call.name, "input": text}
        if kind == _SHELL_NAME:
            action = {"type": "exec", "command": [], "env": {}} | call.input
            return head | {"type": "local_shell_call", "action": action}
        return head | {"type": "function_call", "name": call.name, "arguments": call.arguments}


def _item_id(kind: str, block: Block) -> str:
    return f"{_ID_PREFIXES[kind]}{block.id}"


def _status(block: Block) -> str:
    return "incomplete" if block.cut else "completed"
