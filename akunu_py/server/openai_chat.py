"""OpenAI's chat completions: content, reasoning and tool calls."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.rounds import Finish
from akunu_py.server.body import Body
from akunu_py.server.conversation import (
    Blocks,
    ChatJob,
    count_tokens,
    made_call,
    read_messages,
    read_offered_tools,
    select_tools,
)
from akunu_py.server.dialect import OPENAI, read_effort, read_logprobs, read_options
from akunu_py.server.grammars import read_format
from akunu_py.server.openai import Choice, respond
from akunu_py.server.service import Service
from akunu_py.server.wire import Endpoint, described_logprobs, finish_word
from akunu_py.text.answer_parser import Block
from akunu_py.text.tokenizer import TokenBytes, reserved_names
from akunu_py.tokens import TokenLogprob


def read_chat(service: Service, body: Body) -> ChatJob:
    """A body as a job."""
    tokenizer = service.engine.tokenizer
    grammar = read_format(body, "response_format")
    for name in ("functions", "function_call"):
        if body.has(name):
            body.refuse(name, "is obsolete; send `tools` and `tool_choice` instead")
    tools = select_tools(body, read_offered_tools(body))
    options = read_options(service, body, OPENAI, logprobs=read_logprobs(body), grammar=grammar)
    messages = read_messages(body)
    opens = body.flag("add_generation_prompt", default=None)
    continues = body.flag("continue_final_message", default=None)
    if opens and continues:
        body.refuse("continue_final_message", "cannot be combined with `add_generation_prompt`")
    if continues and (messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]):
        why = "needs a last message from the assistant, without calls"
        body.refuse("continue_final_message", why)
    if continues is not False and [each["role"] for each in messages[-2:]] == ["assistant"] * 2:
        body.refuse("messages", "must not end with two messages from the assistant; join them")
    settings, continues = _read_template_settings(body), continues is not False and not opens
    budget = body.integer("thinking_token_budget", default=None, least=1)  # vLLM's name
    if budget is not None and options.grammar is None and not tools.must_call:
        body.refuse("thinking_token_budget", "needs a grammar or a required call")
    return ChatJob.begin(
        tokenizer, messages, options, tools, settings,
        continues=continues, opens=opens is not False, budget=budget,
    )  # fmt: skip


def _chat(service: Service, body: Body) -> Response:
    job = read_chat(service, body)
    spelling = None if job.options.logprobs is None else service.engine.tokenizer.token_bytes
    return respond(
        service, body, [job], lambda index, _: _ChatChoice(index, job.blocks(), spelling)
    )


def _count_tokens(service: Service, body: Body) -> Response:
    return count_tokens(service, read_chat(service, body), object="response.input_tokens")


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/chat/completions", _chat),
    Endpoint("POST", "/chat/completions", _chat),
    Endpoint("POST", "/v1/chat/completions/input_tokens", _count_tokens, needs=None),
    Endpoint("POST", "/chat/completions/input_tokens", _count_tokens, needs=None),
)


class _ChatChoice(Choice):
    """A choice of `/v1/chat/completions`; `spelling` is None if no log-probabilities are wanted."""

    id_prefix = "chatcmpl-"
    name, chunk_name = "chat.completion", "chat.completion.chunk"

    def __init__(self, index: int, blocks: Blocks, spelling: TokenBytes | None) -> None:
        super().__init__(index)
        self._blocks = blocks
        self._spelling = spelling
        self._num_calls = 0
        self._has_begun = False
        self._nothing = {"index": index, "delta": {}, "logprobs": None, "finish_reason": None}

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            deltas.append({"role": "assistant", "content": None})
        begun = len(deltas)
        for what, block, text in self._blocks.feed(event):
            if block.call is None:
                if what == "delta":
                    name = "reasoning_content" if block.kind == "reasoning" else "content"
                    deltas.append({name: text})
            elif what == "start":
                deltas.append({"tool_calls": [{"index": self._num_calls} | _tool_call(block)]})
                self._num_calls += 1
            elif what == "delta":
                more = {"index": self._num_calls - 1, "function": {"arguments": text}}
                deltas.append({"tool_calls": [more]})
        if event.logprobs and len(deltas) == begun:
            deltas.append({"content": ""})
        choices = [{**self._nothing, "delta": delta} for delta in deltas]
        if event.logprobs:
            choices[-1]["logprobs"] = self._described(event.logprobs)
        return choices

    def empty(self, finish: Finish | None = None) -> dict[str, Any]:
        return self._nothing | {"finish_reason": finish and self._finish_reason(finish)}

    def whole(self, completion: Completion) -> dict[str, Any]:
        self._blocks.take_all(completion)
        calls, reasoning = self._blocks.calls, self._blocks.text("reasoning")
        content = self._blocks.text("text") or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [_tool_call(block) for block in calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._described(completion.logprobs),
            "finish_reason": self._finish_reason(completion.finish_reason),
        }

    def _finish_reason(self, finish: Finish) -> str:
        reason = finish_word(finish)
        return "tool_calls" if self._blocks.has_whole_calls and reason == "stop" else reason

    def _described(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if self._spelling is None:
            return None
        return {"content": described_logprobs(entries, self._spelling), "refusal": None}


def _tool_call(block: Block) -> dict[str, Any]:
    assert block.call is not None
    return made_call(block.call.name, block.call.arguments, block.call_id("call_"))


def _read_template_settings(body: Body) -> dict[str, Any]:
    """Variables for the chat template; a client cannot replace the template or the messages."""
    given = body.object("chat_template_kwargs")
    given.flag("enable_thinking", default=None)  # refuses what is not a flag
    names = {name for name in given.names() if given.has(name)} - reserved_names()
    return {name: given.any(name) for name in names} | read_effort(body, "reasoning_effort")
