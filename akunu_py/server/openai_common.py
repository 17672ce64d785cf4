"""What OpenAI's endpoints have in common: options, choices, chunks, usage and errors.

Beside OpenAI's own fields these are read, spelled as in the other contracts or in mlx-lm's server:
`n_predict` (llama.vim sends 0 to have a chat read but not completed), `top_k`, `min_p`,
`xtc_probability`, `xtc_threshold`, `repetition_penalty`, `repetition_context_size`, and
`num_draft_tokens`, where 0 turns speculation off.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import Any, Final, Protocol
from uuid import uuid4

from starlette.responses import Response

from akunu_py.options import (
    DEFAULT_REPETITION_CONTEXT,
    DEFAULT_XTC_THRESHOLD,
    MAX_XTC_THRESHOLD,
    Grammar,
    Options,
    Sampling,
)
from akunu_py.package import __version__
from akunu_py.request import Completion, Event
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.errors import ApiError
from akunu_py.server.fields import (
    MAX_RECENT,
    MAX_TEMPERATURE,
    MIN_TOP_P,
    read_biases,
    read_choices,
    read_content,
    read_grammar,
    read_num_draft_tokens,
    read_penalty,
    read_priority,
    read_seed,
    read_stops,
    refuse_unserved,
)
from akunu_py.server.job import Job
from akunu_py.server.wire import (
    EVENT_STREAM,
    StreamedResponse,
    WholeResponse,
    prompt_progress,
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
    "not_found_error": "invalid_request_error",
}
_MAX_TOP_LOGPROBS: Final = 20
_MAX_PENALTY: Final = 2.0
_MAX_REPETITION_PENALTY: Final = 1e3
_MIN_LOGPROB: Final = -9999.0
"""OpenAI's log-probability of a nearly impossible token."""


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    return {
        "error": {
            "message": error.message,
            "type": _TYPES.get(error.kind, error.kind),
            "param": error.param,
            "code": _CODES.get(error.kind),
            **error.facts,
        }
    }


def read_options(
    request: ApiRequest,
    *,
    max_tokens: int | None = None,
    logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> Options:
    """How to complete. `max_tokens` applies if neither the body nor the server has a limit; None,
    like a negative number, continues to the end of the context.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, defaults = request.body, request.settings.defaults
    constrained = read_grammar(body, request.engine.tokenizer)
    if grammar is not None and constrained is not None:
        body.refuse("response_format", "cannot be combined with another grammar")
    usual = max_tokens if defaults.max_tokens is None else defaults.max_tokens
    wanted = body.integer("max_completion_tokens", "max_tokens", "n_predict", default=usual)
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=_read_sampling(request),
        stop=read_stops(body),
        drafter=defaults.drafter,
        num_draft_tokens=read_num_draft_tokens(body, defaults),
        exact=defaults.exact,
        references=_read_prediction(body),
        logprobs=logprobs,
        grammar=grammar or constrained,
        priority=read_priority(body),
    )


def read_format(body: Body, name: str) -> Grammar | None:
    """The format of an answer, in OpenAI's three kinds; `json_object` may have a `schema`, as in
    llama-server.

    Raises:
        BodyError: if it cannot be served.
    """
    given = body.object(name)
    kind = given.text("type", default="text")
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        given.refuse("type", "must be text, json_object or json_schema")
    if kind == "json_object" and not given.has("schema"):
        return Grammar.json_object()
    holder = given if given.has("schema") else given.object("json_schema")
    schema = holder.any("schema")
    if not isinstance(schema, dict | bool):
        holder.refuse("schema", "must be a JSON schema")
    return Grammar.json_schema(schema)


def _read_sampling(request: ApiRequest) -> Sampling:
    """How to sample tokens; the server's defaults come before OpenAI's."""
    body, defaults = request.body, request.settings.defaults
    refuse_unserved(body)
    temperature = 1.0 if defaults.temperature is None else defaults.temperature
    top_p = body.number("top_p", default=defaults.top_p or 1.0, least=0, most=1)
    xtc_threshold = (
        DEFAULT_XTC_THRESHOLD if defaults.xtc_threshold is None else defaults.xtc_threshold
    )
    return Sampling(
        temperature=body.number("temperature", default=temperature, least=0, most=MAX_TEMPERATURE),
        top_p=max(top_p, MIN_TOP_P),
        top_k=max(body.integer("top_k", default=defaults.top_k or 0), 0),
        min_p=body.number("min_p", default=defaults.min_p or 0.0, least=0, most=1),
        xtc_probability=body.number(
            "xtc_probability", default=defaults.xtc_probability or 0.0, least=0, most=1
        ),
        xtc_threshold=body.number(
            "xtc_threshold", default=xtc_threshold, least=0, most=MAX_XTC_THRESHOLD
        ),
        seed=read_seed(body, defaults),
        repetition_penalty=body.number(
            "repetition_penalty",
            "repeat_penalty",
            default=1.0,
            least=1e-3,
            most=_MAX_REPETITION_PENALTY,
        ),
        repetition_context_size=body.integer(
            "repetition_context_size",
            default=DEFAULT_REPETITION_CONTEXT,
            least=1,
            most=MAX_RECENT,
        ),
        logit_bias=read_biases(body, request.engine.tokenizer),
        presence_penalty=read_penalty(body, "presence_penalty", _MAX_PENALTY),
        frequency_penalty=read_penalty(body, "frequency_penalty", _MAX_PENALTY),
    )


def _read_prediction(body: Body) -> tuple[str, ...]:
    """`{"type": "content", "content": text or parts}`: text that the completion will repeat."""
    if not body.has("prediction"):
        return ()
    prediction = body.object("prediction")
    if prediction.text("type", default="content") != "content":
        prediction.refuse("type", "must be content")
    content = read_content(prediction)
    return (content,) if content else ()


@dataclass(frozen=True)
class ResponseKind:
    """The names in an endpoint's responses, and whether the last chunk always has the usage."""

    id_prefix: str
    name: str
    chunk_name: str
    ends_with_usage: bool = False


class Choice(Protocol):
    """Formats one completion as a choice of a response, or of chunks; `reasoning_tokens` are those
    of its tokens that were reasoning."""

    reasoning_tokens: int

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        """The choices of the chunks for the next event of a stream."""

    def end(self, finish: Finish) -> dict[str, Any]:
        """The choice of the chunk that ends a stream."""

    def whole(self, completion: Completion) -> dict[str, Any]:
        """The choice of a response that is not streamed."""


def respond(
    request: ApiRequest,
    prompt_jobs: Sequence[Job],
    kind: ResponseKind,
    make_choice: Callable[[int, Job], Choice],
) -> Response:
    """Does the job of every prompt, as often as the client wants choices of it.

    Raises:
        BodyError: if these are more than the server allows.
    """
    body, service = request.body, request.service
    per_prompt, jobs = read_choices(body, prompt_jobs, "n")
    streams = body.flag("stream", default=False)
    times_tokens = body.flag("timings_per_token", default=False)
    reports_usage = body.object("stream_options").flag("include_usage", default=False)
    choices = [make_choice(index, job) for index, job in enumerate(jobs)]
    usage = _Usage(per_prompt)
    head = {
        "id": f"{kind.id_prefix}{uuid4().hex}",
        "object": kind.chunk_name if streams else kind.name,
        "created": int(time()),
        "model": request.model_name,
        "system_fingerprint": f"b{__version__}-akunu-py",
    }

    async def chunks() -> AsyncGenerator[bytes, None]:
        """One choice after another; the last chunk has the timings."""
        chunk = head | ({"usage": None} if reports_usage else {})
        begun = False
        for job, choice in zip(jobs, choices, strict=True):
            async with aclosing(service.stream(job)) as events:
                progress: dict[str, Any] | None = None
                async for event in events:
                    if progress is None:
                        progress = prompt_progress(body, event.stats)
                    timed = {"timings": timings(event.stats)} if times_tokens else {}
                    for chunk_choice in choice.chunk_choices(event):
                        # As in llama-server, the first chunk has a role, and no timings.
                        extra = timed if begun else {}
                        begun = True
                        yield sse(chunk | {"choices": [chunk_choice]} | extra | progress)
                        progress = {}
            # The last event: a stream has one or more.
            usage.add(event.stats, choice.reasoning_tokens)
            end = chunk | {"choices": [choice.end(event.finish_reason or Finish.CANCELLED)]}
            if choice is choices[-1] and not reports_usage:
                figures = usage.figures() | _verbose(request, jobs[0])
                if not kind.ends_with_usage:
                    del figures["usage"]
                end |= figures
            yield sse(end)
        if reports_usage:
            yield sse(head | {"choices": []} | usage.figures() | _verbose(request, jobs[0]))
        yield _DONE

    if streams:
        return StreamedResponse(chunks(), EVENT_STREAM, lambda error: sse(error_body(error)))

    async def whole() -> dict[str, Any]:
        made = []
        completions = await service.complete_all(jobs)
        for completion, choice in zip(completions, choices, strict=True):
            made.append(choice.whole(completion))
            usage.add(completion.stats, choice.reasoning_tokens)
        return head | {"choices": made} | usage.figures() | _verbose(request, jobs[0])

    return WholeResponse(whole)


def _verbose(request: ApiRequest, job: Job) -> dict[str, Any]:
    """The prompt that the template made, if the request has llama-server's `verbose`."""
    if not request.body.flag("verbose", default=False):
        return {}
    tokenizer = request.engine.tokenizer
    return {"__verbose": {"prompt": tokenizer.readable(job.prompt_text(tokenizer.decode))}}


class _Usage:
    """The sums over all choices of a request. A prompt counts once, however many choices it has."""

    def __init__(self, per_prompt: int) -> None:
        self._per_prompt = per_prompt
        self._choices = 0
        self._sums = Stats()
        self._prompts = Stats()
        self._reasoning_tokens = 0

    def add(self, stats: Stats, reasoning_tokens: int) -> None:
        """Adds the next choice, which has ended."""
        self._reasoning_tokens += min(reasoning_tokens, stats.generated_tokens)
        self._sums.include(stats)
        if self._choices % self._per_prompt == 0:
            self._prompts.include(stats)
        self._choices += 1

    def figures(self) -> dict[str, Any]:
        """OpenAI's `usage` and llama-server's `timings`. All draft tokens count as predicted ones,
        not only those drafted from the client's `prediction`."""
        sums, prompts = self._sums, self._prompts
        usage = {
            "prompt_tokens": prompts.prompt_tokens,
            "completion_tokens": sums.generated_tokens,
            "total_tokens": prompts.prompt_tokens + sums.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": prompts.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self._reasoning_tokens,
                "accepted_prediction_tokens": sums.accepted,
                "rejected_prediction_tokens": sums.drafted - sums.accepted,
            },
        }
        return {"usage": usage, "timings": timings(sums)}


def spell(spelling: TokenBytes, token: int) -> str:
    """A token's text, with backslashes in place of an incomplete character."""
    return spelling.of(token).decode(errors="backslashreplace")


def bounded(logprob: float) -> float:
    """A log-probability that JSON can have: it knows no infinity."""
    return max(logprob, _MIN_LOGPROB)


def describe_logprob(spelling: TokenBytes, token: int, logprob: float) -> dict[str, Any]:
    """A token with its log-probability, as OpenAI and Ollama spell it."""
    return {
        "token": spell(spelling, token),
        "bytes": list(spelling.of(token)),
        "logprob": bounded(logprob),
    }


def read_logprobs(body: Body) -> int | None:
    """How many alternatives to report per token; None reports no log-probabilities."""
    wanted = body.flag("logprobs", default=False)
    alternatives = body.integer("top_logprobs", default=0, least=0, most=_MAX_TOP_LOGPROBS)
    if alternatives and not wanted:
        body.refuse("top_logprobs", "needs `logprobs` to be true")
    return alternatives if wanted else None
