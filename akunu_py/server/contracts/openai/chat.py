"""`/v1/chat/completions`: answers a conversation."""

from typing import Final

from starlette.responses import Response

from akunu_py.server.contract import Call
from akunu_py.server.contracts.openai.answering import Kind, respond
from akunu_py.server.contracts.openai.chat_choice import ChatChoice
from akunu_py.server.contracts.openai.chat_request import read_chat

_KIND: Final = Kind("chatcmpl-", "chat.completion", "chat.completion.chunk")


async def chat(call: Call) -> Response:
    """Says what comes next in a conversation."""
    request = read_chat(call)
    spelling = call.service.engine.tokenizer.token_bytes

    def choice(index: int) -> ChatChoice:
        return ChatChoice(index, request.parser(), spelling if request.reports_logprobs else None)

    return await respond(call, request.answers, _KIND, choice)
