"""Answers one request, however many choices it wants, whole or in server-sent events."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.openai.choice import Choice
from akunu_py.server.contracts.openai.errors import error_body
from akunu_py.server.contracts.openai.request import AnswerRequest
from akunu_py.server.contracts.openai.usage import Tally
from akunu_py.server.streaming import EVENT_STREAM, StreamedResponse, sse

_DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Kind:
    """How an endpoint's responses are called.

    Attributes:
        id_prefix: of a response's id.
        name: its `object`.
        chunk_name: a chunk's `object`.
        ends_with_usage: whether a stream's last chunk has the usage, asked for or not.
    """

    id_prefix: str
    name: str
    chunk_name: str
    ends_with_usage: bool = False


async def respond(
    call: Call, request: AnswerRequest, kind: Kind, choice: Callable[[int], Choice]
) -> Response:
    """Does what was asked for.

    Args:
        call: has the service.
        request: what was asked.
        kind: of the response.
        choice: begins the answer with an index.
    """
    head = {
        "id": f"{kind.id_prefix}{uuid4().hex}",
        "object": kind.chunk_name if request.streams else kind.name,
        "created": int(time()),
        "model": call.service.engine.model.name,
    }
    if request.streams:
        return StreamedResponse(
            _stream(call, request, kind, head, choice),
            EVENT_STREAM,
            error_chunk=lambda fault: sse(error_body(fault)),
        )
    tally, choices = Tally(), []
    for index, job in enumerate(request.jobs):
        answer = choice(index)
        for event in await call.service.complete(job):
            answer.take(event)
        tally.add(event.stats, new_prompt=index % request.choices == 0)
        choices.append(answer.whole())
    return CompactJSONResponse(
        head | {"choices": choices, "usage": tally.usage(), "timings": tally.timings()}
    )


async def _stream(
    call: Call,
    request: AnswerRequest,
    kind: Kind,
    head: dict[str, Any],
    choice: Callable[[int], Choice],
) -> AsyncGenerator[bytes, None]:
    """Chunks as they come, one choice after another; the last one has the timings."""
    tally = Tally()
    between = head | ({"usage": None} if request.reports_usage else {})
    for index, job in enumerate(request.jobs):
        answer = choice(index)
        async with aclosing(call.service.stream(job)) as events:
            async for event in events:
                for part in answer.take(event):
                    yield sse(between | {"choices": [part]})
        tally.add(event.stats, new_prompt=index % request.choices == 0)
        is_last = index == len(request.jobs) - 1 and not request.reports_usage
        figures = {"timings": tally.timings()} if is_last else {}
        if is_last and kind.ends_with_usage:
            figures["usage"] = tally.usage()
        yield sse(between | {"choices": [answer.end()]} | figures)
    if request.reports_usage:
        yield sse(head | {"choices": [], "usage": tally.usage(), "timings": tally.timings()})
    yield _DONE
