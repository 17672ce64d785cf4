"""OpenAI's Responses, which Codex, the `openai` libraries and the AI SDK speak.

The blocks of an answer become items, streamed as typed events or whole.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from time import time
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.errors import ContextOverflowError
from akunu_py.events import Completion, Event
from akunu_py.options import Options, Sampling
from akunu_py.server.contract import ApiRequest
from akunu_py.server.conversation import (
    Block,
    Blocks,
    Conversation,
    Step,
    Tools,
)
from akunu_py.server.dialect import OPENAI, read_format, read_options
from akunu_py.server.errors import ApiError
from akunu_py.server.fields import Message, made_call
from akunu_py.server.response_store import History, input_items
from akunu_py.server.responses_request import (
    SHELL_NAME,
    merged,
    read_input,
    read_tools,
    without_oldest,
)
from akunu_py.server.wire import (
    FINISH_REASONS,
    CompactJSONResponse,
    named_sse,
    prompt_progress,
    timings,
)
from akunu_py.server.wire import respond as send

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_DIALECT: Final = replace(OPENAI, limits=("max_output_tokens", *OPENAI.limits))


def count_tokens(request: ApiRequest) -> Response:
    """`/v1/responses/input_tokens`: how long the prompt of such a request is."""
    tokens = _read(request)[0].count_tokens(request.engine.tokenizer)
    return CompactJSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


def _read(request: ApiRequest) -> tuple[Conversation, dict[str, str], History]:
    """A body as a conversation, the kinds of its tools by their names, and what it consists of.

    Raises:
        ApiError: if a field cannot be served.
    """
    body, engine = request.body, request.engine
    for name in ("background", "conversation", "prompt"):
        if body.any(name):
            body.refuse(name, "is not served")
    if body.integer("top_logprobs", default=0):
        body.refuse("top_logprobs", "is not served here; chat completions have it")
    if "message.output_text.logprobs" in body.texts("include"):
        body.refuse("include", "cannot have log-probabilities here; chat completions have them")
    truncation = body.text("truncation", default="disabled")
    if truncation not in ("disabled", "auto"):
        body.refuse("truncation", "must be disabled or auto")
    body.integer("max_output_tokens", default=None, least=1)
    grammar = read_format(body.object("text"), "format")
    options = read_options(request, _DIALECT, grammar=grammar)
    kinds, tools = read_tools(body, model_has_tools=engine.tokenizer.answer_format.has_tools)
    earlier = body.text("previous_response_id", default=None)
    history = History() if earlier is None else request.responses.get(earlier).history
    messages = read_input(body)
    history = history.followed_by(input_items(body), messages)
    instructions = body.text("instructions", default=None)
    opening = [{"role": "system", "content": instructions}] if instructions else []
    effort = body.object("reasoning").text("effort", default=None)
    conversation = _begin(
        engine,
        merged([*opening, *history.messages]),
        options,
        tools,
        {} if effort is None else {"reasoning_effort": effort},
        truncates=truncation == "auto",
    )
    return conversation, kinds, history


def respond(request: ApiRequest) -> Response:
    """`/v1/responses`: continues a conversation."""
    conversation, kinds, history = _read(request)
    sampling = conversation.job.options.sampling
    reply = _Reply(request, sampling, _Items(conversation.blocks(), kinds), history)
    streams = request.body.flag("stream", default=False)
    return send(request.service, [conversation.job], reply, streams=streams)


class _Reply:
    """Writes an answer as a response with items, or as the events that tell how they grow."""

    def __init__(
        self,
        request: ApiRequest,
        sampling: Sampling,
        items: "_Items",
        history: History,
    ) -> None:
        body = request.body
        self._items = items
        self._history = history
        self._store = request.responses if body.flag("store", default=True) else None
        self._times_tokens = body.flag("timings_per_token", default=False)
        self._numbers = count()
        self._begun = False
        self._head = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.any("instructions"),
            "max_output_tokens": body.any("max_output_tokens"),
            "metadata": body.any("metadata") or {},
            "model": request.model_name,
            "output": [],
            "parallel_tool_calls": body.flag("parallel_tool_calls", default=True),
            "previous_response_id": body.any("previous_response_id"),
            "reasoning": {"effort": body.object("reasoning").any("effort"), "summary": None},
            "store": self._store is not None,
            "temperature": sampling.temperature,
            "text": {"format": body.object("text").any("format") or {"type": "text"}},
            "tool_choice": body.any("tool_choice") or "auto",
            "tools": body.any("tools") or [],
            "top_p": sampling.top_p,
            "truncation": body.text("truncation", default="disabled"),
            "usage": None,
            "user": body.any("user"),
        }

    def feed(self, _: int, event: Event) -> Iterator[bytes]:
        if not self._begun:
            self._begun = True
            yield self._event("created", {"response": self._head})
            yield self._event("in_progress", {"response": self._head})
        if progress := prompt_progress(event):
            yield self._event("in_progress", {"response": self._head} | progress)
        timed = {"timings": timings(event.stats)} if self._times_tokens else {}
        for name, fields in self._items.feed(event):
            yield self._event(name, fields | (timed if name.endswith(".delta") else {}))

    def end(self, _: int, completion: Completion) -> Iterator[bytes]:
        response = self._final(completion)
        timed = {"timings": timings(completion.stats)} if self._times_tokens else {}
        yield self._event(response["status"], {"response": response} | timed)

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        (completion,) = completions
        list(self._items.feed(completion))
        return self._final(completion)

    def report(self, error: ApiError) -> bytes:
        what = {"code": error.kind, "message": error.message}
        return self._event("failed", {"response": self._head | {"status": "failed", "error": what}})

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return named_sse(f"response.{name}", {"sequence_number": next(self._numbers), **fields})

    def _final(self, completion: Completion) -> dict[str, Any]:
        response = self._head | _ending(completion, self._items) | {"output": self._items.done}
        if self._store is not None:
            self._store.add(response, self._history, self._items.as_message())
        return response


def _begin(
    engine: "Engine",
    messages: list[Message],
    options: Options,
    tools: Tools,
    settings: Mapping[str, Any],
    *,
    truncates: bool,
) -> Conversation:
    """A conversation; if it may be truncated, without the oldest turns if they leave no room."""
    limit = engine.context_limit
    room = limit - min(options.max_tokens or 1, limit // 2)
    ways = [messages]
    while truncates and (rest := without_oldest(ways[-1])):
        ways.append(rest)

    def begun(way: int) -> Conversation:
        return Conversation.begin(engine, ways[way], options, tools, settings)

    # Each trial renders what is left, so there must be few; the last way is taken as it is.
    way = bisect_left(range(len(ways) - 1), True, key=lambda way: _fits(engine, begun(way), room))
    return begun(way)


def _fits(engine: "Engine", conversation: Conversation, room: int) -> bool:
    """Whether a conversation's prompt has so many tokens or fewer."""
    try:
        return len(engine.tokenizer.encode(str(conversation.job.prompt), most=room)) <= room
    except ContextOverflowError:
        return False


def _ending(completion: Completion, items: "_Items") -> dict[str, Any]:
    """How a response ended, and its usage. With a call that a stop string has cut it is incomplete:
    clients parse all calls of a complete one."""
    stats = completion.stats
    reason = None
    if FINISH_REASONS[completion.finish_reason] == "length":
        reason = "max_output_tokens"
    elif items.has_cut_call:
        reason = "stop"
    return {
        "status": "incomplete" if reason else "completed",
        "incomplete_details": {"reason": reason} if reason else None,
        "usage": {
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": {"cached_tokens": stats.cached_tokens},
            "output_tokens": stats.generated_tokens,
            "output_tokens_details": {
                "reasoning_tokens": min(items.reasoning_tokens, stats.generated_tokens)
            },
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
        return [self._item(block, _status(block)) for block in self._blocks.done]

    def as_message(self) -> Message:
        """The whole answer as a message of the conversation."""
        done = self._blocks.done
        calls = [
            made_call(block.call.name, block.call.input, item["call_id"])
            for block, item in zip(done, self.done, strict=True)
            if block.call is not None
        ]
        said = self._blocks.text("text")
        return {"role": "assistant", "content": said} | ({"tool_calls": calls} if calls else {})

    @property
    def has_cut_call(self) -> bool:
        """Whether the answer ended within a call."""
        return any(block.cut for block in self._blocks.calls)

    @property
    def reasoning_tokens(self) -> int:
        """How many tokens of the answer were reasoning."""
        return self._blocks.reasoning_tokens

    def feed(self, source: Event | Completion) -> Iterator[tuple[str, dict[str, Any]]]:
        """Takes what comes next of the answer and returns the events for it."""
        for step in self._blocks.feed(source):
            yield from self._events(step)

    def _events(self, step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
        what, block, text = step
        item = self._item(block, _status(block) if what == "stop" else "in_progress")
        place = {"output_index": block.index, "item_id": item["id"]}
        if block.call is not None:
            field = {"function_call": "arguments", "custom_tool_call": "input"}.get(item["type"])
            name = "function_call_arguments" if field == "arguments" else "custom_tool_call_input"
            if what == "delta":
                if field == "arguments":
                    yield f"{name}.delta", place | {"delta": text}
                return
            if what == "stop" and field == "input":  # the text is known only now
                yield f"{name}.delta", place | {"delta": item[field]}
            if what == "stop" and field is not None:
                yield f"{name}.done", place | {"name": block.call.name, field: item[field]}
            if what == "start" and field is not None:
                item |= {field: ""}
        else:
            place |= {"content_index": 0}
            name = "output_text" if block.kind == "text" else "reasoning_text"
            (part,) = item["content"] or [None]
            extra: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
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
            own: dict[str, Any] = {"id": f"rs_{block.id}", "type": "reasoning", "content": content}
            return own | {"summary": [], "encrypted_content": None, "status": status}
        part = {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
        return {"id": f"msg_{block.id}", "type": "message", "role": "assistant",
                "content": [part], "status": status}  # fmt: skip

    def _call(self, block: Block, status: str) -> dict[str, Any]:
        """A call, in the form of the tool that it calls."""
        assert block.call is not None
        name, arguments = block.call.name, block.call.arguments
        head = {"call_id": block.call.id or f"call_{block.id[:24]}", "status": status}
        kind = self._kinds.get(name, "function")
        given = block.call.input
        own: dict[str, Any]
        if kind == "custom":
            text = str(given.get("input", ""))
            own = {"id": f"ctc_{block.id}", "type": "custom_tool_call", "name": name, "input": text}
        elif kind == SHELL_NAME:
            action: dict[str, Any] = {"type": "exec", "command": [], "env": {}} | given
            own = {"id": f"lsh_{block.id}", "type": "local_shell_call", "action": action}
        else:
            own = {"id": f"fc_{block.id}", "type": "function_call", "name": name,
                   "arguments": arguments}  # fmt: skip
        return head | own


def _status(block: Block) -> str:
    """The status of a block that has ended, as an item."""
    return "incomplete" if block.cut else "completed"
