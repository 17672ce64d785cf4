"""`/completion`: an answer to a prompt, at once or as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.errors import error_body
from akunu_py.server.contracts.llama.request import CompletionRequest, read_completion
from akunu_py.server.contracts.llama.response import Result, pick
from akunu_py.server.streaming import EVENT_STREAM, StreamedResponse, sse


async def complete(call: Call) -> Response:
    """Answers a prompt, or several."""
    return await respond(call, read_completion(call))


async def respond(call: Call, request: CompletionRequest) -> Response:
    """Does what was asked for: one result is an object, several are a list of them."""
    if request.streams:
        return StreamedResponse(
            _stream(call, request),
            EVENT_STREAM,
            error_chunk=lambda fault: sse(error_body(fault)),
        )
    results = [await _answer(call, request, index) for index in range(len(request.jobs))]
    return CompactJSONResponse(results[0] if len(results) == 1 else results)


async def _answer(call: Call, request: CompletionRequest, index: int) -> dict[str, Any]:
    job = request.jobs[index]
    result = Result(call.service.engine, job, index)
    async with aclosing(call.service.stream(job)) as events:
        async for event in events:
            result.add(event)
    whole = result.final(with_text=True, with_tokens=request.returns_tokens)
    return pick(whole, request.fields)


async def _stream(call: Call, request: CompletionRequest) -> AsyncGenerator[bytes, None]:
    """Text as it comes, and after each answer's last one its statistics."""
    for index, job in enumerate(request.jobs):
        result = Result(call.service.engine, job, index)
        async with aclosing(call.service.stream(job)) as events:
            async for event in events:
                result.add(event)
                if event.text or event.tokens:
                    yield sse(result.partial(event, with_timings=request.times_tokens))
        whole = result.final(with_text=False, with_tokens=False)
        yield sse(pick(whole, request.fields))
