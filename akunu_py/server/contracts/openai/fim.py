"""`/v1/fim/completions`: Mistral's endpoint for filling gaps, answered as a chat is."""

from typing import Final

from starlette.responses import Response

from akunu_py.server.contract import Call
from akunu_py.server.contracts.openai.answering import Kind, respond
from akunu_py.server.contracts.openai.fim_choice import FimChoice
from akunu_py.server.contracts.openai.request import read_options, read_request
from akunu_py.server.job import Job

_KIND: Final = Kind("fim-", "chat.completion", "chat.completion.chunk", ends_with_usage=True)


async def fill(call: Call) -> Response:
    """Fills the gap between `prompt` and `suffix`, or goes on from `prompt` where there is none."""
    body = call.body
    if not body.has("prompt"):
        body.refuse("prompt", "is missing")
    options = read_options(call, max_tokens=None, logprobs=None)
    job = Job(body.text("prompt", default=""), options, body.text("suffix", default=None))
    return await respond(call, read_request(body, [job]), _KIND, FimChoice)
