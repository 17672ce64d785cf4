"""OpenAI's chat completions: content, reasoning and tool calls."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from starlette.responses import Response

from akunu_py.request import Completion, Event
from akunu_py.round import Finish
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.conversation import Block, Blocks, Conversation, Step, select_tools
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
from akunu_py.text.chat_template import reserved_names
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
        return _ChatChoice(index, conversation.blocks(), spelling)

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
    if continues is not False and [each["role"] for each in messages[-2:]] == ["assistant"] * 2:
        body.refuse("messages", "must not end with two messages of the assistant; join them")
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

    def __init__(self, index: int, blocks: Blocks, spelling: TokenBytes | None) -> None:
        self._index = index
        self._blocks = blocks
        self._spelling = spelling
        self._has_begun = False
        self._num_calls = 0

    @property
    def reasoning_tokens(self) -> int:
        return self._blocks.reasoning_tokens

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        deltas = [delta for step in self._blocks.feed(event) for delta in self._deltas(step)]
        if event.logprobs and not deltas:
            deltas = [{"content": ""}]
        if not self._has_begun:
            self._has_begun = True
            deltas = [{"role": "assistant", "content": None}, *deltas]
        choices = [self._choice(delta) for delta in deltas]
        if event.logprobs:
            choices[-1]["logprobs"] = self._logprobs(event.logprobs)
        return choices

    def nothing(self) -> dict[str, Any]:
        return self._choice({})

    def end(self, finish: Finish) -> dict[str, Any]:
        return self._choice({}) | {"finish_reason": self._finish_reason(finish)}

    def whole(self, completion: Completion) -> dict[str, Any]:
        list(self._blocks.feed(completion))
        calls, reasoning = self._blocks.calls, self._blocks.text("reasoning")
        self._num_calls = len(calls)
        content = self._blocks.text("text") or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [_tool_call(block) for block in calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": self._finish_reason(completion.finish_reason),
        }

    def _deltas(self, step: Step) -> Iterator[dict[str, Any]]:
        """The `delta` for a step of a stream, if there is one."""
        what, block, text = step
        if block.call is None:
            if what == "delta":
                yield {"reasoning_content" if block.kind == "reasoning" else "content": text}
        elif what == "start":
            yield {"tool_calls": [{"index": self._num_calls} | _tool_call(block)]}
            self._num_calls += 1
        elif what == "delta":
            more = {"index": self._num_calls - 1, "function": {"arguments": text}}
            yield {"tool_calls": [more]}

    def _finish_reason(self, finish: Finish) -> str:
        reason = FINISH_REASONS[finish]
        return "tool_calls" if self._blocks.has_whole_calls and reason == "stop" else reason

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """One object for each token, if log-probabilities are wanted."""
        if self._spelling is None:
            return None
        content = logprob_entries(entries, partial(describe_logprob, self._spelling))
        return {"content": content, "refusal": None}

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def _tool_call(block: Block) -> dict[str, Any]:
    assert block.call is not None
    id_ = block.call.id or f"call_{block.id[:24]}"
    return made_call(block.call.name, block.call.arguments, id_)


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
