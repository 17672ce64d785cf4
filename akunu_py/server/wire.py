"""What several contracts send alike: compact JSON, streams of it, timings and finish reasons."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akunu_py.request import Completion, Event
from akunu_py.round import Finish
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.errors import NOTED_ERROR, ApiError, noted_error
from akunu_py.server.job import Job
from akunu_py.stats import Stats
from akunu_py.text.token_bytes import TokenBytes

if TYPE_CHECKING:
    from akunu_py.server.service import Service

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"

FINISH_REASONS: Final = {
    Finish.EOS: "stop",
    Finish.STOP: "stop",
    Finish.LENGTH: "length",
    Finish.CONTEXT: "length",
    Finish.CANCELLED: "length",
}
"""OpenAI's and Ollama's words. A job that was cancelled and still has a reader is overdue."""

_MIN_LOGPROB: Final = -9999.0
"""OpenAI's log-probability of a nearly impossible token."""
_LINE_ENDS: Final = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Python's `splitlines`, with which clients separate lines of JSON, splits at these as well."""
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def compact_json(value: Any) -> bytes:
    """A value on one line and without spaces, as llama.vim's patterns need it.

    Raises:
        ValueError: if there is an infinite number in it, which is a bug.
    """
    text = _ENCODER.encode(value)
    return (text if text.isascii() else text.translate(_LINE_ENDS)).encode(errors="replace")


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + compact_json(value) + b"\n\n"


def named_sse(name: str, fields: dict[str, Any]) -> bytes:
    """One server-sent event with a name, which is also the `type` of its object."""
    return b"event: " + name.encode() + b"\n" + sse({"type": name} | fields)


def json_line(value: Any) -> bytes:
    """One line of newline-delimited JSON."""
    return compact_json(value) + b"\n"


class CompactJSONResponse(Response):
    """Responds with one JSON value."""

    media_type = JSON

    def __init__(
        self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(compact_json(value), status_code, headers)


class WholeResponse(Response):
    """Responds with one JSON value, which `make` makes once the response is to be sent."""

    def __init__(self, make: Callable[[], Awaitable[Any]]) -> None:
        super().__init__()
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await CompactJSONResponse(await self._make())(scope, receive, send)


class StreamedResponse(Response):
    """Sends what a generator yields.

    It waits for the first chunk before it sends the status, so that an error before the first chunk
    is an error response. A later error is reported within the stream. The generator is closed when
    all is sent, sending fails, or the client disconnects.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        error_chunk: Callable[[ApiError], bytes],
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._error_chunk = error_chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks, b"")
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await send(_body(first))
            while NOTED_ERROR not in scope:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    break
                except Exception as error:
                    chunk = self._error_chunk(noted_error(scope, error))
                await send(_body(chunk))
            await send({"type": "http.response.body", "body": b""})


class Reply(Protocol):
    """Writes the answers to the jobs of one request, in the form of a contract; the index says
    which of them."""

    def feed(self, index: int, event: Event) -> Iterable[bytes]:
        """The chunks of a stream for the next event."""

    def end(self, index: int, completion: Completion) -> Iterable[bytes]:
        """The chunks after the last event; the completion is all of them together."""

    def whole(self, completions: Sequence[Completion]) -> Any:
        """The value of a response that is not streamed."""

    def report(self, error: ApiError) -> bytes:
        """The chunk for an error after the first chunk."""


def respond(
    service: "Service",
    jobs: Sequence[Job],
    reply: Reply,
    *,
    streams: bool,
    media_type: str = EVENT_STREAM,
) -> Response:
    """Does jobs and sends the answers; their streams come together."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        completions = [Completion("") for _ in jobs]
        async with aclosing(service.stream_all(jobs)) as events:
            async for index, event in events:
                completions[index].add(event)
                for chunk in reply.feed(index, event):
                    yield chunk
                if event.finish_reason is not None:
                    for chunk in reply.end(index, completions[index]):
                        yield chunk

    async def whole() -> Any:
        return reply.whole(await service.complete_all(jobs))

    if not streams:
        return WholeResponse(whole)
    return StreamedResponse(chunks(), media_type, reply.report)


def describe_logprob(spelling: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    """A token with its log-probability, as OpenAI and Ollama spell it."""
    return {
        "token": spell(spelling, token),
        "bytes": list(spelling.of(token)),
        "logprob": bounded(logprob),
    }


def spell(spelling: TokenBytes, token: int) -> str:
    """A token's text, with backslashes in place of an incomplete character."""
    return spelling.of(token).decode(errors="backslashreplace")


def bounded(logprob: float) -> float:
    """A log-probability that JSON can have: it knows no infinity."""
    return max(logprob, _MIN_LOGPROB)


def logprob_entries(
    entries: Sequence[TokenLogprob], describe: Callable[[int, float], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One object per token, with those of its alternatives in `top_logprobs`."""
    return [
        describe(entry.token, entry.logprob)
        | {"top_logprobs": [describe(*other) for other in entry.alternatives]}
        for entry in entries
    ]


def _body(chunk: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


def timings(stats: Stats, done: int | None = None) -> dict[str, Any]:
    """How long the prompt and the completion took, in llama-server's words; cached prompt tokens
    do not count.

    `draft_n` and `draft_n_accepted` are there only if anything was drafted. They count what is left
    after the text was cut at a stop string. `done` is how much of the prompt is, if not all of it.
    """
    prompt = stats.prompt_tokens if done is None else done
    computed = max(prompt - stats.cached_tokens, 0)
    found = {"cache_n": stats.cached_tokens}
    found |= _rates("prompt", computed, stats.prefill_s if computed or done is None else 0.0)
    found |= _rates("predicted", stats.generated_tokens, stats.decode_s)
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return found


def prompt_progress(event: Event) -> dict[str, Any]:
    """What `return_progress` asks for, in llama-server's words; nothing for other events."""
    if event.prompt_done is None:
        return {}
    stats = event.stats
    figures = {"total": stats.prompt_tokens, "cache": stats.cached_tokens,
               "processed": event.prompt_done}  # fmt: skip
    return {"prompt_progress": figures | {"time_ms": round(stats.prefill_s * 1000)}}


def _rates(name: str, tokens: int, seconds: float) -> dict[str, Any]:
    milliseconds = seconds * 1000
    return {
        f"{name}_n": tokens,
        f"{name}_ms": round(milliseconds, 3),
        f"{name}_per_token_ms": round(milliseconds / tokens, 4) if tokens else 0.0,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds > 0 else 0.0,
    }
