"""`/completion` and `/infill`: an answer, at once or as server-sent events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.errors import error_body
from akunu_py.server.contracts.llama.request import (
    CompletionRequest,
    read_completion,
    read_infill,
)
from akunu_py.server.contracts.llama.response import Result
from akunu_py.server.streaming import EVENT_STREAM, StreamedResponse, sse


async def complete(call: Call) -> Response:
    """Goes on from a prompt, or from several."""
    return await _respond(call, read_completion(call))


async def infill(call: Call) -> Response:
    """Fills the gap between two texts."""
    return await _respond(call, read_infill(call))


async def _respond(call: Call, request: CompletionRequest) -> Response:
    """Answers one job after another: one result is an object, several are a list of them."""
    if request.streams:
        return StreamedResponse(
            _stream(call, request),
            EVENT_STREAM,
            error_chunk=lambda fault: sse(error_body(fault)),
        )
    results = [await _answer(call, request, index) for index in range(len(request.jobs))]
    return CompactJSONResponse(results[0] if len(results) == 1 else results)


async def _answer(call: Call, request: CompletionRequest, index: int) -> dict[str, Any]:
    result = Result(call.service.engine, request, index)
    for event in await call.service.complete(request.jobs[index]):
        result.add(event)
    return result.final()


async def _stream(call: Call, request: CompletionRequest) -> AsyncGenerator[bytes, None]:
    """Text as it comes, and after each answer's last one its statistics."""
    for index, job in enumerate(request.jobs):
        result = Result(call.service.engine, request, index)
        async with aclosing(call.service.stream(job)) as events:
            async for event in events:
                result.add(event)
                if event.tokens or event.text:
                    yield sse(result.partial(event))
        yield sse(result.final())
