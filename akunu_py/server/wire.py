"""What all APIs share: endpoints, responses, compact JSON and streams of it, timings, finish
reasons and log-probabilities.

A handler takes the service and the request's body, and returns a response or raises an error. It
knows neither ASGI nor disconnects. The engine's work begins when the response is sent.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akunu_py.events import Completion, Event
from akunu_py.options import BUNDLED_MODEL
from akunu_py.rounds import Finish, Stats
from akunu_py.server.errors import ApiError, noted_error
from akunu_py.text.tokenizer import TokenBytes
from akunu_py.tokens import TokenLogprob

if TYPE_CHECKING:
    from akunu_py.model.library import LocalModel
    from akunu_py.server.body import Body
    from akunu_py.server.service import Job, Service

logger = logging.getLogger(__name__)

STATUS: Final = "akunu_py.status"
"""The key in a request's scope for the status, once a response has begun."""
LOAD_S: Final[ContextVar[float]] = ContextVar("load_s", default=0.0)
"""How many seconds a request has waited for its model to be loaded."""
NDJSON: Final = "application/x-ndjson"

CHUNK: Final = "http.response.body"
ERRORS_COME_S: Final = 0.5
"""The status of a stream waits this long, which is enough for the engine to refuse a request."""
SILENCE_S: Final = 5.0
"""Proxies and clients give up on streams that are silent for 10 seconds or more."""
_NOT_FOR_AGENTS: Final = f"{BUNDLED_MODEL} edits short Python code; it is not a model for agents."
_MIN_LOGPROB: Final = -9999.0
"""OpenAI's log-probability of a nearly impossible token."""
_LINE_ENDS: Final = {end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Python's `splitlines`, which clients use to separate lines of JSON, also splits at these."""
_AT_ONCE: Final = 1 << 18
"""Characters: all other threads wait a millisecond or two while so many are encoded."""
_SHORT: Final = 1 << 16
"""Characters that an answer repeats and that may be written on the event loop."""
_EXAMPLES: Final[Mapping[str | None, str]] = {
    "embedding": "; `akunu-py pull mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ` fetches one.",
    "reranking": "; `akunu-py pull mlx-community/Qwen3-Reranker-0.6B-mxfp8` fetches one.",
}
_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=lambda part: part()
)
"""A value may have a function in place of a part: other threads wait while the encoder runs, but
not while it calls a function."""


@dataclass(frozen=True)
class Endpoint:
    """A method and a path, in Starlette's notation, and their handler.

    The handler gets the service of a model, and the body of a POST or the path parameters of other
    requests. An open endpoint needs no API key, a slow one gets a thread, and most need an ability
    of the model. Only those that need completion stream.
    """

    method: str
    path: str
    handler: "Callable[[Any, Body], Response]"
    is_open: bool = False
    is_slow: bool = False
    needs: str | None = "completion"

    def check(self, model: "LocalModel") -> None:
        """Refuses a model that is for another task, before it is loaded."""
        if self.needs not in (None, model.ability):
            why = f"{model.name} is for {model.ability}, not for {self.needs}: choose another model"
            why += _EXAMPLES.get(self.needs, ".")
            raise ApiError(HTTPStatus.BAD_REQUEST, why, param="model")


class PoolEndpoint(Endpoint):
    """An endpoint about all models: the handler gets the pool, and no model is loaded."""


def finish_word(finish: Finish | None) -> str:
    """OpenAI's and Ollama's word. A cancelled job that still has a reader was overdue."""
    return "stop" if finish in (Finish.EOS, Finish.STOP) else "length"


def compact_json(value: Any) -> bytes:
    """A value on one line without spaces, as llama.vim's patterns require."""
    text = _ENCODER.encode(value)
    parts = (text[at : at + _AT_ONCE] for at in range(0, len(text), _AT_ONCE))
    return b"".join(map(_encoded, parts))


def _encoded(text: str) -> bytes:
    for end, escape in _LINE_ENDS.items():
        text = text.replace(end, escape)
    return text.encode(errors="replace")


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + compact_json(value) + b"\n\n"


def named_sse(name: str, fields: dict[str, Any]) -> bytes:
    """One server-sent event with a name, which is also the `type` of its object."""
    return b"event: " + name.encode() + b"\n" + sse({"type": name} | fields)


def json_line(value: Any) -> bytes:
    """One line of newline-delimited JSON."""
    return compact_json(value) + b"\n"


def new_id(prefix: str) -> str:
    """An id for a response or a part of it."""
    return f"{prefix}{uuid4().hex}"


class Answer(Response):
    """A response that is sent whole. It leaves its status in the scope, for the log."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STATUS] = self.status_code
        await super().__call__(scope, receive, send)


class JSONAnswer(Answer):
    """One JSON value."""

    media_type = "application/json"

    def __init__(
        self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(compact_json(value), status_code, headers)


_STREAM_HEADERS: Final = (
    (b"cache-control", b"no-cache"), (b"content-type", b"text/event-stream; charset=utf-8"),
)  # fmt: skip


async def start_stream(
    scope: Scope, send: Send, headers: Iterable[tuple[bytes, bytes]] = _STREAM_HEADERS
) -> None:
    """Begins a response whose chunks follow."""
    scope[STATUS] = 200
    await send({"type": "http.response.start", "status": 200, "headers": list(headers)})


class Reply(Protocol):
    """Writes the answers to the jobs of one request in the form of an API; the index says which
    job. A reply that `is_slow` needs time for the beginnings and ends of answers; `kept_bytes` is
    roughly how many bytes of the request's body it keeps."""

    is_slow: bool = False
    kept_bytes: int = 0

    def begin(self, stats: Stats) -> Iterable[bytes]:
        """The chunks before those of events, with what is known of the first job so far."""
        return ()

    def keep_alive(self) -> bytes:
        """The chunk to send while there is nothing else to send: a comment, which clients skip."""
        return b": waiting\n\n"

    def feed(self, index: int, event: Event) -> Iterable[bytes]:
        """The chunks of a stream for the next event; the last event has a finish reason."""

    def whole(self, completions: Sequence[Completion]) -> Any:
        """The value of a response that is not streamed."""

    def report(self, error: ApiError) -> bytes:
        """The chunk for an error after the first chunk."""


class JobAnswer(Response):
    """Runs jobs when it is sent, and sends what a reply makes of their events: one JSON value, or
    chunks as the events come. A refused prompt raises the error of `Service.encode`.

    A stream begins with its first event, or after half a second without one. An error before that
    becomes an error response, a later one a chunk. The jobs are cancelled when sending fails or the
    client disconnects.
    """

    def __init__(
        self,
        service: "Service",
        jobs: "Sequence[Job]",
        reply: Reply,
        *,
        streams: bool,
        media_type: str = "text/event-stream",
    ) -> None:
        options, said = jobs[0].options, list[str]()
        if options.grammar and (unmet := options.grammar.unmet):
            said.append(f"The schema is followed without {', '.join(unmet)}.")
        if options.sample_calls and service.model.name == BUNDLED_MODEL:
            said.append(_NOT_FOR_AGENTS)
            _warn_once(_NOT_FOR_AGENTS)
        self._warning = _warning(" ".join(said)) if said else {}
        headers = {"Cache-Control": "no-cache"} | self._warning
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        service.encode(jobs)
        self.kept_bytes = reply.kept_bytes + sum(job.kept_bytes for job in jobs)
        self._service = service
        self._jobs = jobs
        self._reply = reply
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for job in self._jobs:
            job.peer, _ = scope.get("client") or ("", 0)
        if self._streams:
            await self._stream(scope, send)
        else:
            completions = await self._service.complete(self._jobs)

            def write() -> Response:
                return JSONAnswer(self._reply.whole(completions), headers=self._warning)

            answer = await asyncio.to_thread(write) if self._is_slow else write()
            await answer(scope, receive, send)

    @property
    def _is_slow(self) -> bool:
        """Whether writing the answer may take long; log-probabilities may be those of a prompt."""
        is_long = len(self._jobs) > 1 or len(self._jobs[0].echo) > _SHORT
        return is_long or self._jobs[0].options.logprobs is not None or self._reply.is_slow

    async def _stream(self, scope: Scope, send: Send) -> None:
        chunks = _Chunks(self._reply, self._jobs[0], self.raw_headers, scope, send)
        begun: set[int] = set()
        try:
            async with aclosing(self._service.stream(self._jobs)) as events:
                async for index, event in events:
                    parts = self._reply.feed(index, event)
                    is_edge = index not in begun or event.finish_reason is not None
                    begun.add(index)
                    if event.prompt_logprobs is not None or (is_edge and self._is_slow):
                        parts = await asyncio.to_thread(list, parts)
                    await chunks.send(parts)
        except Exception as error:
            if STATUS not in scope:
                raise
            await chunks.send((self._reply.report(noted_error(scope, error)),))
        finally:
            chunks.stop()
        await chunks.end()


class _Chunks:
    def __init__(
        self,
        reply: Reply,
        first: "Job",
        headers: list[tuple[bytes, bytes]],
        scope: Scope,
        send: Send,
    ) -> None:
        self._reply = reply
        self._first = first
        self._headers = headers
        self._has_begun = False
        self._scope = scope
        self._send = send
        self._is_silent = False
        self._in_order = asyncio.Lock()
        self._keeping_alive = asyncio.ensure_future(self._keep_alive())

    async def send(self, chunks: Iterable[bytes]) -> None:
        self._is_silent = False
        async with self._in_order:
            if STATUS not in self._scope:
                await start_stream(self._scope, self._send, self._headers)
            if not self._has_begun:
                self._has_begun = True
                chunks = chain(self._reply.begin(self._first.sequence.stats), chunks)
            for chunk in chunks:
                await self._send({"type": CHUNK, "body": chunk, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": CHUNK, "body": b""})

    def stop(self) -> None:
        """Sends no more on its own."""
        self._keeping_alive.cancel()

    async def _keep_alive(self) -> None:
        await asyncio.sleep(ERRORS_COME_S)
        await self.send(())
        while True:
            self._is_silent = True
            await asyncio.sleep(SILENCE_S)
            if self._is_silent:
                await self.send((self._reply.keep_alive(),))


def _warning(said: str) -> dict[str, str]:
    return {"Warning": f'299 akunu_py "{ascii(said[:500])[1:-1]}"'}


@cache
def _warn_once(said: str) -> None:
    logger.warning(said)


def spell(spelling: TokenBytes, token: int) -> str:
    """A token's text, with backslashes in place of an incomplete character."""
    return spelling.of(token).decode(errors="backslashreplace")


def bounded(logprob: float) -> float:
    """A log-probability without infinity, which JSON does not have."""
    return max(logprob, _MIN_LOGPROB)


def described_logprobs(
    entries: Sequence[TokenLogprob], spelling: TokenBytes
) -> list[Callable[[], dict[str, Any]]]:
    """`logprob_entries` in the form of OpenAI and Ollama."""

    def describe(token: int, logprob: float) -> dict[str, Any]:
        spelled = {"token": spell(spelling, token), "bytes": list(spelling.of(token))}
        return spelled | {"logprob": bounded(logprob)}

    return logprob_entries(entries, describe)


def logprob_entries(
    entries: Sequence[TokenLogprob], describe: Callable[[int, float], dict[str, Any]]
) -> list[Callable[[], dict[str, Any]]]:
    """One object per token, with those of its alternatives in `top_logprobs`; see `_ENCODER`."""

    def entry_of(entry: TokenLogprob) -> dict[str, Any]:
        others = [describe(*other) for other in entry.alternatives]
        return describe(entry.token, entry.logprob) | {"top_logprobs": others}

    return [partial(entry_of, entry) for entry in entries]


def timings(stats: Stats, done: int | None = None) -> dict[str, Any]:
    """How long the prompt and the completion took, in llama-server's fields. Cached prompt tokens
    do not count; `done` is how many prompt tokens are done, if not all. Our own fields are
    `forward_n`, `drafts`, and the `speedup` over no drafts, if it is known."""
    prompt = stats.prompt_tokens if done is None else done
    computed = max(prompt - stats.cached_tokens, 0)
    found: dict[str, Any] = {"cache_n": stats.cached_tokens}
    found |= _rates("prompt", computed, stats.prefill_s if computed or done is None else 0.0)
    found |= _rates("predicted", stats.generated_tokens, stats.decode_s)
    found["forward_n"] = stats.target_forwards
    if stats.speedup is not None:
        found["speedup"] = round(stats.speedup, 3)
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
        found["drafts"] = stats.drafts
    return found


def prompt_progress(event: Event) -> dict[str, Any]:
    """The progress for `return_progress`, in llama-server's fields; empty for other events."""
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
