"""llama-server's contract, which llama.vim, llama.vscode, Tabby, Twinny and Continue rely on."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse, Response

from akunu_py.options import MAX_SLOTS, Options
from akunu_py.package import __version__
from akunu_py.request import Completion, Event
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.contract import ApiRequest, Contract, Endpoint, refuse_embeddings
from akunu_py.server.errors import ApiError
from akunu_py.server.fields import FORBIDDEN
from akunu_py.server.llama_request import (
    DEFAULT_SAMPLERS,
    CompletionRequest,
    read_completion,
    read_infill,
    read_options,
)
from akunu_py.server.metrics import prometheus_lines
from akunu_py.server.openai_chat import read_conversation
from akunu_py.server.projects import learn
from akunu_py.server.wire import (
    EVENT_STREAM,
    JSON,
    CompactJSONResponse,
    StreamedResponse,
    WholeResponse,
    compact_json,
    logprob_entries,
    prompt_progress,
    sse,
    timings,
)
from akunu_py.stats import Finish

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STOP_TYPES: Final = {
    Finish.EOS: "eos",
    Finish.STOP: "word",
    Finish.LENGTH: "limit",
    Finish.CONTEXT: "limit",
    Finish.CANCELLED: "limit",
}
_MIN_LOGPROB: Final = -1e9
"""The log-probability of an impossible token, because JSON has no infinity."""
_ABSENT: Final = object()
_OFF: Final = {"typical_p": 1.0, "dynatemp_range": 0.0, "mirostat": 0, "dry_multiplier": 0.0,
               "top_n_sigma": -1.0, "adaptive_target": -1.0, "adaptive_decay": 0.9}  # fmt: skip
"""llama-server's settings of samplers that are not served: they are always off."""


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {"code", "message", "type"}}`."""
    named: dict[str, Any] = {"code": error.status, "message": error.message, "type": error.kind}
    return {"error": {**named, **error.facts}}


def complete(request: ApiRequest) -> Response:
    """`/completion`: continues a prompt, or several."""
    return _respond(request, read_completion(request))


def infill(request: ApiRequest) -> Response:
    """`/infill`: fills the gap between two texts."""
    return _respond(request, read_infill(request))


def _respond(request: ApiRequest, wanted: CompletionRequest) -> Response:
    """Does the jobs; one result is sent as an object, several as a list. Streams come one after
    another."""
    service = request.service
    formats = [_ResultFormat(request.engine, wanted, index) for index in range(len(wanted.jobs))]

    async def whole() -> Any:
        completions = await service.complete_all(wanted.jobs)
        results = [one.final(done) for one, done in zip(formats, completions, strict=True)]
        return results[0] if len(results) == 1 else results

    async def chunks() -> AsyncGenerator[bytes, None]:
        """The text as it is generated, and the statistics at the end of each completion."""
        for format_ in formats:
            completion = Completion(request.engine.model.name)
            async with aclosing(service.stream(format_.job)) as events:
                progress: dict[str, Any] | None = None
                async for event in events:
                    completion.add(event)
                    if progress is None:
                        progress = prompt_progress(request.body, event.stats)
                    for partial in format_.partials(event):
                        yield sse(partial | progress)
                        progress = {}
            yield sse(format_.final(completion))

    if not wanted.streams:
        return WholeResponse(whole)
    return StreamedResponse(chunks(), EVENT_STREAM, lambda error: sse(error_body(error)))


class _ResultFormat:
    """Formats the completion of a request that has this index."""

    def __init__(self, engine: "Engine", wanted: CompletionRequest, index: int) -> None:
        self._engine = engine
        self._wanted = wanted
        self.job = wanted.jobs[index]
        self._index = index

    def partials(self, event: Event) -> Iterator[dict[str, Any]]:
        """The streamed chunks for an event: one, or one for each token with its probabilities."""
        stats = event.stats
        chunk: dict[str, Any] = {
            "index": self._index,
            "stop": False,
            "id_slot": self.job.slot or 0,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
        }
        if self._wanted.times_tokens:
            chunk["timings"] = timings(stats)
        if not event.logprobs:
            if event.tokens or event.text:
                yield chunk | {"content": event.text, "tokens": list(event.tokens)}
            return
        last = len(event.tokens) - 1
        for index, (token, entry) in enumerate(zip(event.tokens, event.logprobs, strict=True)):
            pieces = event.pieces[index : None if index == last else index + 1]
            content = {"content": "".join([piece.text for piece in pieces]), "tokens": [token]}
            yield chunk | content | self._probabilities([entry])

    def final(self, completion: Completion) -> dict[str, Any]:
        """The whole result; or the last chunk of a stream, which has sent the text before."""
        streams = self._wanted.streams
        stats, text = completion.stats, completion.text
        whole = {
            "index": self._index,
            "content": "" if streams else text,
            "tokens": completion.token_ids if self._wanted.returns_tokens and not streams else [],
            "id_slot": self.job.slot or 0,
            "stop": True,
            "model": completion.model,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": _generation_settings(
                self._engine, self.job.options, self._wanted.samplers
            ),
            "prompt": self.job.prompt_text(self._engine.tokenizer.decode),
            "has_new_line": "\n" in text,
            "truncated": completion.finish_reason is Finish.CONTEXT,
            "stop_type": _STOP_TYPES[completion.finish_reason],
            "stopping_word": completion.stop or "",
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }
        whole |= {} if streams else self._probabilities(completion.logprobs)
        return _pick(whole, self._wanted.fields)

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`completion_probabilities`, if `n_probs` asked for them."""
        if self.job.options.logprobs is None:
            return {}
        return {"completion_probabilities": logprob_entries(logprobs, self._probability)}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        spelling = self._engine.tokenizer.token_bytes.of(token)
        return {
            "id": token,
            "token": spelling.decode(errors="replace"),
            "bytes": list(spelling),
            "logprob": max(logprob, _MIN_LOGPROB),
        }


def _generation_settings(
    engine: "Engine", options: Options, samplers: Sequence[str]
) -> dict[str, Any]:
    """The options of a request, in llama-server's words."""
    sampling = options.sampling
    return {
        "n_ctx": engine.context_limit,
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "seed": -1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_context_size,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": [
            {"token": token, "bias": None if bias == FORBIDDEN else bias}
            for token, bias in sampling.logit_bias
        ],
        "stop": list(options.stop),
        "n_probs": options.logprobs or 0,
        "samplers": list(samplers),
        **_OFF,
        "speculative.n_max": 0 if not options.drafts else options.num_draft_tokens,
    }


def _pick(result: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The wanted fields. A nested field, such as `timings/prompt_n`, keeps its whole name and is
    not nested in the result. Unknown fields are left out; no fields mean all of them."""
    if not fields:
        return result
    picked: dict[str, Any] = {}
    for field in fields:
        value: Any = result
        for name in field.split("/"):
            value = value.get(name, _ABSENT) if isinstance(value, dict) else _ABSENT
        if value is not _ABSENT:
            picked[field] = value
    return picked


def tokenize(request: ApiRequest) -> Response:
    """`content` as ids. `add_special` puts the opening token before them; `parse_special: false`
    takes spelled-out special tokens for plain text; `with_pieces` adds the text of each id."""
    body, tokenizer = request.body, request.engine.tokenizer
    content = body.text("content", default="")
    if len(content) > body.limits.tokenized_characters:
        body.refuse("content", f"is longer than {body.limits.tokenized_characters} characters")
    opens = body.flag("add_special", default=False)
    if body.flag("parse_special", default=True):
        tokens = tokenizer.encode(content, special_tokens=opens)
    else:
        opening = tokenizer.encode("") if opens else []
        tokens = opening + tokenizer.encode_plain(content)
    if not body.flag("with_pieces", default=False):
        return CompactJSONResponse({"tokens": tokens})
    pieces = (compact_json({"id": token, "piece": tokenizer.decode([token])}) for token in tokens)
    # One by one, because nothing else runs while JSON is written.
    return Response(b'{"tokens":[' + b",".join(pieces) + b"]}", media_type=JSON)


def detokenize(request: ApiRequest) -> Response:
    """The text of `tokens`."""
    engine, body = request.engine, request.body
    tokens = body.values("tokens")
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < engine.model.vocabulary_size:
            body.refuse(f"tokens[{index}]", "must be an id of the model's vocabulary")
    text = engine.tokenizer.decode(tokens)
    return CompactJSONResponse({"content": text})


def apply_template(request: ApiRequest) -> Response:
    """The prompt of a request for `/v1/chat/completions`, whose body it takes."""
    prompt = str(read_conversation(request).job.prompt)
    return CompactJSONResponse({"prompt": request.engine.tokenizer.readable(prompt)})


def health(request: ApiRequest) -> Response:
    """`{"status": "ok"}`, or an error while the model loads."""
    _ = request.engine
    return CompactJSONResponse({"status": "ok"})


def props(request: ApiRequest) -> Response:
    """The properties of the model, and the default options."""
    engine = request.engine
    wrapped = engine.tokenizer.wrapped
    return CompactJSONResponse(
        {
            "default_generation_settings": {
                "n_ctx": engine.context_limit,
                "params": _generation_settings(engine, read_options(request), DEFAULT_SAMPLERS),
            },
            "total_slots": MAX_SLOTS,
            "model_alias": request.model_name,
            "model_path": engine.model.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": _text_or_nothing(getattr(wrapped, "chat_template", None)),
            "bos_token": _text_or_nothing(wrapped.bos_token),
            "eos_token": _text_or_nothing(wrapped.eos_token),
            "build_info": f"akunu-py {__version__}",
        }
    )


def _text_or_nothing(value: Any) -> str:
    return value if isinstance(value, str) else ""


def slots(request: ApiRequest) -> Response:
    """The caches of earlier requests, and what the requests that use them have done."""
    engine = request.engine
    answers = {
        events.answer.slot_id: (job, events.answer.stats, events.sequence)
        for job, events in request.service.active
        if events.answer is not None
    }

    def doing(slot: int) -> dict[str, Any]:
        if slot not in answers:
            return {}
        job, stats, sequence = answers[slot]
        most = job.options.max_tokens
        left = -1 if most is None else most - stats.generated_tokens
        token = {"n_decoded": stats.generated_tokens, "n_remain": left, "has_next_token": True}
        return {
            "id_task": -1 if sequence is None else sequence.arrival,
            "n_prompt_tokens": stats.prompt_tokens,
            "n_prompt_tokens_cache": stats.cached_tokens,
            "next_token": [token],
            "kind": job.kind,
        }

    return CompactJSONResponse(
        [
            {
                "id": slot.id,
                "n_ctx": engine.context_limit,
                "speculative": True,
                "is_processing": slot.busy,
                "n_tokens": slot.tokens,
                "n_bytes": slot.nbytes,
                **(doing(slot.id) if slot.busy else {}),
            }
            for slot in engine.slots
        ]
    )


def metrics(request: ApiRequest) -> Response:
    """Sums for Prometheus; they are available while the model loads, too."""
    service = request.service
    lines = prometheus_lines(
        service.metrics,
        processing=service.processing,
        waiting=service.waiting,
        rounds=service.scheduler.rounds,
        advanced=service.scheduler.advanced,
    )
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


def lora_adapters(request: ApiRequest) -> Response:
    """None: an adapter is a part of the model from the start."""
    _ = request.engine
    return CompactJSONResponse([])


LLAMA: Final = Contract(
    name="llama",
    endpoints=(
        Endpoint("POST", "/infill", infill),
        Endpoint("POST", "/completion", complete),
        Endpoint("POST", "/completions", complete),
        Endpoint("POST", "/tokenize", tokenize),
        Endpoint("POST", "/detokenize", detokenize),
        Endpoint("POST", "/apply-template", apply_template),
        Endpoint("GET", "/health", health, is_open=True),
        Endpoint("GET", "/v1/health", health, is_open=True),
        Endpoint("GET", "/props", props),
        Endpoint("GET", "/slots", slots),
        Endpoint("GET", "/metrics", metrics),
        Endpoint("GET", "/lora-adapters", lora_adapters),
        Endpoint("POST", "/project/learn", learn),
        *(
            Endpoint("POST", path, refuse_embeddings)
            for path in ("/embedding", "/embeddings", "/rerank", "/reranking")
        ),
    ),
    error_body=error_body,
)
