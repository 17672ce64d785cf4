"""`/api/chat`: the next message of a conversation: thoughts, text and calls of tools."""

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.ollama.request import read_options, read_think, refuse_images
from akunu_py.server.contracts.ollama.response import Reply, respond
from akunu_py.server.job import Job
from akunu_py.server.messages import read_messages, read_offered_tools
from akunu_py.text.answer_parser import AnswerFormat, AnswerParser, Part, ToolCall


class _ChatReply(Reply):
    """Puts text into a message of the assistant's.

    Args:
        call: what asked for it.
        parser: tells its parts apart.
    """

    def __init__(self, call: Call, parser: AnswerParser) -> None:
        super().__init__(call)
        self._parser = parser

    def tell(self, text: str, *, ends: bool) -> dict[str, Any]:
        parts = self._parser.feed(text)
        if ends:
            parts += self._parser.finish()
        return _message(parts) if parts else {}

    def tell_all(self, text: str) -> dict[str, Any]:
        return self.tell(text, ends=True) if text else _message(())


async def chat(call: Call) -> Response:
    """Answers a conversation; one without messages only asks for the model to be there.

    A model whose template has no tools answers without them.
    """
    body, tokenizer = call.body, call.service.engine.tokenizer
    format_ = tokenizer.answer_format
    options = read_options(call)
    offered = read_offered_tools(body)
    tools = offered if format_.has_tools else []
    settings = read_think(body)
    if tools and options.grammar is not None:
        body.refuse("format", "cannot be had together with `tools`")
    if not body.values("messages"):
        return CompactJSONResponse(_ChatReply(call, AnswerParser(format_, None, "")).loaded())
    for message in body.objects("messages"):
        refuse_images(message)
    prompt = tokenizer.render_chat(
        read_messages(body), open_answer=True, tools=tools, settings=settings
    )
    read_as = AnswerFormat() if options.grammar is not None else format_
    reply = _ChatReply(call, AnswerParser(read_as, tools or None, prompt))
    return await respond(call, Job(prompt, options), reply)


def _message(parts: Sequence[Part]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part.content for part in parts),
    }
    thinking = "".join(part.reasoning for part in parts)
    calls = [_tool_call(call) for part in parts for call in part.calls]
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    """A call with its arguments as an object, which clients read even where there are none."""
    arguments = json.loads(call.arguments)
    named = {"name": call.name, "arguments": arguments if isinstance(arguments, dict) else {}}
    return {"function": named}
