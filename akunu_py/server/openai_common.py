"""What OpenAI's endpoints have in common: options, choices, chunks, usage and errors.

Beside OpenAI's own fields these are read, spelled as in the other contracts or in mlx-lm's server:
`n_predict` (llama.vim sends 0 to have a chat read but not completed), `top_k`, `min_p`,
`repetition_penalty`, `repetition_context_size`, and `num_draft_tokens`, where 0 turns speculation
off.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import Any, Final, Protocol
from uuid import uuid4

from starlette.responses import Response

from akunu_py.options import DEFAULT_REPETITION_CONTEXT, Grammar, Options, Sampling
from akunu_py.request import Completion, Event
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.errors import Fault
from akunu_py.server.fields import (
    read_bias,
    read_choices,
    read_content,
    read_drafting,
    read_seed,
    read_stops,
)
from akunu_py.server.job import Job
from akunu_py.server.settings import Defaults
from akunu_py.server.wire import (
    EVENT_STREAM,
    CompactJSONResponse,
    StreamedResponse,
    sse,
    timings,
)
from akunu_py.stats import Finish, Stats
from akunu_py.text.token_bytes import TokenBytes

_DONE: Final = b"data: [DONE]\n\n"
_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    "authentication_error": "invalid_api_key",
    "rate_limit_error": "rate_limit_exceeded",
    "not_found_error": "not_found",
}
_TYPES: Final = {
    "exceed_context_size_error": "invalid_request_error",
    "not_found_error": "invalid_request_error",
}
_SMALLEST_TOP_P: Final = 1e-6
_MOST_TEMPERATURE: Final = 1e3
_MOST_PENALTY: Final = 2.0
_MOST_REPETITION_PENALTY: Final = 1e3
_MOST_RECENT: Final = 4096
_LEAST_LOGPROB: Final = -9999.0
"""OpenAI's log-probability of a nearly impossible token."""


def error_body(fault: Fault) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return {
        "error": {
            "message": fault.message,
            "type": _TYPES.get(fault.kind, fault.kind),
            "param": fault.param,
            "code": _CODES.get(fault.kind),
        }
    }


@dataclass(frozen=True)
class ChoicesRequest:
    """The choices that a client wants, and how to send them.

    Attributes:
        jobs: one for each choice, in the order of their index.
        per_prompt: how many choices each prompt has.
        streams: whether chunks are sent as they come.
        reports_usage: whether a stream ends with the usage.
    """

    jobs: tuple[Job, ...]
    per_prompt: int
    streams: bool
    reports_usage: bool


def read_request(body: Body, jobs: Sequence[Job]) -> ChoicesRequest:
    """The request for some jobs, each repeated for every choice.

    Raises:
        BodyError: if these are more than the server allows.
    """
    per_prompt, variants = read_choices(body, jobs, "n")
    return ChoicesRequest(
        jobs=variants,
        per_prompt=per_prompt,
        streams=body.flag("stream", default=False),
        reports_usage=body.object("stream_options").flag("include_usage", default=False),
    )


def read_options(
    request: ApiRequest,
    *,
    max_tokens: int | None = None,
    logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> Options:
    """How to complete.

    Args:
        request: has the body.
        max_tokens: used if neither the body nor the server sets it; None, like a negative number,
            goes on to the end of the context.
        logprobs: see `Options`.
        grammar: see `Options`.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, defaults = request.body, request.settings.defaults
    usual = max_tokens if defaults.max_tokens is None else defaults.max_tokens
    wanted = body.integer("max_completion_tokens", "max_tokens", "n_predict", default=usual)
    drafter, num_draft_tokens = read_drafting(body, defaults)
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=_read_sampling(body, defaults),
        stop=read_stops(body),
        drafter=drafter,
        num_draft_tokens=num_draft_tokens,
        references=_read_prediction(body),
        logprobs=logprobs,
        grammar=grammar,
    )


def _read_sampling(body: Body, defaults: Defaults) -> Sampling:
    """How to sample tokens; the server's defaults come before OpenAI's."""
    temperature = 1.0 if defaults.temperature is None else defaults.temperature
    top_p = body.number("top_p", default=defaults.top_p or 1.0, least=0, most=1)
    return Sampling(
        temperature=body.number(
            "temperature", default=temperature, least=0, most=_MOST_TEMPERATURE
        ),
        top_p=max(top_p, _SMALLEST_TOP_P),
        top_k=max(body.integer("top_k", default=defaults.top_k or 0), 0),
        min_p=body.number("min_p", default=defaults.min_p or 0.0, least=0, most=1),
        seed=read_seed(body),
        repetition_penalty=body.number(
            "repetition_penalty", default=1.0, least=1e-3, most=_MOST_REPETITION_PENALTY
        ),
        repetition_context_size=body.integer(
            "repetition_context_size",
            default=DEFAULT_REPETITION_CONTEXT,
            least=1,
            most=_MOST_RECENT,
        ),
        logit_bias=read_bias(body),
        presence_penalty=_read_penalty(body, "presence_penalty"),
        frequency_penalty=_read_penalty(body, "frequency_penalty"),
    )


def _read_penalty(body: Body, name: str) -> float:
    return body.number(name, default=0.0, least=-_MOST_PENALTY, most=_MOST_PENALTY)


def _read_prediction(body: Body) -> tuple[str, ...]:
    """`{"type": "content", "content": text or parts}`: what the completion will mostly repeat."""
    if not body.has("prediction"):
        return ()
    prediction = body.object("prediction")
    if prediction.text("type", default="content") != "content":
        prediction.refuse("type", "must be content")
    content = read_content(prediction)
    return (content,) if content else ()


@dataclass(frozen=True)
class ResponseKind:
    """The names in an endpoint's responses.

    Attributes:
        id_prefix: of a response's id.
        name: the `object` of a response.
        chunk_name: the `object` of a chunk.
        ends_with_usage: whether the last chunk of a stream always has the usage.
    """

    id_prefix: str
    name: str
    chunk_name: str
    ends_with_usage: bool = False


class Choice(Protocol):
    """Formats one completion as a choice of a response, or of chunks."""

    def parts(self, event: Event) -> list[dict[str, Any]]:
        """The choices of the chunks for the next event of a stream."""

    def end(self, finish: Finish) -> dict[str, Any]:
        """The choice of the chunk that ends a stream."""

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The choice of a response that is not streamed."""


async def respond(
    request: ApiRequest,
    wanted: ChoicesRequest,
    kind: ResponseKind,
    make_choice: Callable[[int], Choice],
) -> Response:
    """Does the jobs of a request, one after another.

    Args:
        request: has the service.
        wanted: has the jobs.
        kind: of the response.
        make_choice: makes the choice with an index.
    """
    head = {
        "id": f"{kind.id_prefix}{uuid4().hex}",
        "object": kind.chunk_name if wanted.streams else kind.name,
        "created": int(time()),
        "model": request.engine.model.name,
    }
    if wanted.streams:
        return StreamedResponse(
            _stream(request, wanted, kind, head, make_choice),
            EVENT_STREAM,
            error_chunk=lambda fault: sse(error_body(fault)),
        )
    usage, choices = _Usage(), []
    for index, job in enumerate(wanted.jobs):
        completion = await request.service.complete(job)
        usage.add(completion.stats, new_prompt=index % wanted.per_prompt == 0)
        choices.append(make_choice(index).whole(completion))
    return CompactJSONResponse(
        head | {"choices": choices, "usage": usage.usage(), "timings": usage.timings()}
    )


async def _stream(
    request: ApiRequest,
    wanted: ChoicesRequest,
    kind: ResponseKind,
    head: dict[str, Any],
    make_choice: Callable[[int], Choice],
) -> AsyncGenerator[bytes, None]:
    """Chunks as they come, one choice after another; the last chunk has the timings."""
    usage = _Usage()
    chunk = head | ({"usage": None} if wanted.reports_usage else {})
    for index, job in enumerate(wanted.jobs):
        choice, finish = make_choice(index), Finish.CANCELLED
        async with aclosing(request.service.stream(job)) as events:
            async for event in events:
                for part in choice.parts(event):
                    yield sse(chunk | {"choices": [part]})
                finish = event.finish_reason or finish
        usage.add(event.stats, new_prompt=index % wanted.per_prompt == 0)
        is_last = index == len(wanted.jobs) - 1 and not wanted.reports_usage
        figures = {"timings": usage.timings()} if is_last else {}
        if is_last and kind.ends_with_usage:
            figures["usage"] = usage.usage()
        yield sse(chunk | {"choices": [choice.end(finish)]} | figures)
    if wanted.reports_usage:
        yield sse(head | {"choices": [], "usage": usage.usage(), "timings": usage.timings()})
    yield _DONE


class _Usage:
    """The sums over all choices of a request, in OpenAI's words and in llama-server's."""

    def __init__(self) -> None:
        self._sums = Stats()
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def add(self, stats: Stats, *, new_prompt: bool) -> None:
        """Adds a choice that has ended; a prompt counts once, however many choices it has."""
        self._sums.include(stats)
        if new_prompt:
            self._prompt_tokens += stats.prompt_tokens
            self._cached_tokens += stats.cached_tokens

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`. All draft tokens count as predicted ones, not only those drafted from
        the client's `prediction`."""
        sums = self._sums
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": sums.generated_tokens,
            "total_tokens": self._prompt_tokens + sums.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sums.accepted,
                "rejected_prediction_tokens": sums.drafted - sums.accepted,
            },
        }

    def timings(self) -> dict[str, Any]:
        """llama-server's `timings`."""
        return timings(self._sums)


def spell(spelling: TokenBytes, token: int) -> str:
    """A token's text, with backslashes where it is only a part of a character."""
    return spelling.of(token).decode(errors="backslashreplace")


def bounded(logprob: float) -> float:
    """A log-probability that JSON can have: it knows no infinity."""
    return max(logprob, _LEAST_LOGPROB)
