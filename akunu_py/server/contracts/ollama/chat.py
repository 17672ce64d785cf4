"""`/api/chat`: the next message of a conversation."""

from typing import Any

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.ollama.request import read_options, refuse_images
from akunu_py.server.contracts.ollama.response import Reply, respond
from akunu_py.server.job import Job
from akunu_py.server.messages import read_messages


class _ChatReply(Reply):
    """Puts text into a message of the assistant's."""

    def say(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}


async def chat(call: Call) -> Response:
    """Answers a conversation; one without messages only asks for the model to be there."""
    body, tokenizer = call.body, call.service.engine.tokenizer
    reply = _ChatReply(call)
    options = read_options(call)
    if not body.values("messages"):
        return CompactJSONResponse(reply.loaded())
    for message in body.objects("messages"):
        refuse_images(message)
    prompt = tokenizer.render_chat(read_messages(body), open_answer=True)
    return await respond(call, Job(prompt, options), reply)
