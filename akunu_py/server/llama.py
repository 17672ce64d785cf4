"""llama-server's contract, which llama.vim, llama.vscode, Tabby, Twinny and Continue rely on."""

import math
from collections.abc import Iterator, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import PlainTextResponse, Response

from akunu_py.options import Options
from akunu_py.package import __version__
from akunu_py.request import Completion, Event
from akunu_py.round import Finish
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.contract import ApiRequest, Contract, Endpoint, refuse_embeddings
from akunu_py.server.dialect import DEFAULT_SAMPLERS, FORBIDDEN
from akunu_py.server.errors import ApiError
from akunu_py.server.llama_request import (
    CompletionRequest,
    read_completion,
    read_completion_options,
    read_infill,
)
from akunu_py.server.metrics import prometheus_lines
from akunu_py.server.openai_chat import read_conversation
from akunu_py.server.projects import learn
from akunu_py.server.wire import (
    JSON,
    CompactJSONResponse,
    compact_json,
    logprob_entries,
    prompt_progress,
    respond,
    sse,
    timings,
)

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
_STARTED: Final = int(time())
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
    """Does the jobs; one result is sent as an object, several as a list."""
    return respond(request.service, wanted.jobs, _Reply(request, wanted), streams=wanted.streams)


class _Reply:
    """Writes results: chunks have the text as it is generated, the last one the statistics."""

    def __init__(self, request: ApiRequest, wanted: CompletionRequest) -> None:
        self._engine = request.engine
        self._model = request.model_name
        self._wanted = wanted

    def feed(self, index: int, event: Event) -> Iterator[bytes]:
        """A chunk, or one for each token with its probabilities."""
        stats, job = event.stats, self._wanted.jobs[index]
        progress = prompt_progress(event)
        chunk: dict[str, Any] = {
            "index": index,
            "stop": False,
            "id_slot": job.slot or 0,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
        }
        if self._wanted.times_tokens:
            chunk["timings"] = timings(stats, event.prompt_done)
        contents = [{"content": "", "tokens": []}] if progress else self._contents(event)
        for content in contents:
            yield sse(chunk | content | progress)

    def _contents(self, event: Event) -> Iterator[dict[str, Any]]:
        if not event.logprobs:
            if event.tokens or event.text:
                yield {"content": event.text, "tokens": list(event.tokens)}
            return
        last = len(event.tokens) - 1
        for at, (token, entry) in enumerate(zip(event.tokens, event.logprobs, strict=True)):
            pieces = event.pieces[at : None if at == last else at + 1]
            content = {"content": "".join([piece.text for piece in pieces]), "tokens": [token]}
            yield content | self._probabilities([entry])

    def end(self, index: int, completion: Completion) -> Iterator[bytes]:
        text = {"content": "", "tokens": []}
        yield sse(_pick(self._result(index, completion) | text, self._wanted.fields))

    def whole(self, completions: Sequence[Completion]) -> Any:
        results = [
            _pick(
                self._result(index, completion) | self._probabilities(completion.logprobs),
                self._wanted.fields,
            )
            for index, completion in enumerate(completions)
        ]
        return results[0] if len(results) == 1 else results

    def report(self, error: ApiError) -> bytes:
        return sse(error_body(error))

    def _result(self, index: int, completion: Completion) -> dict[str, Any]:
        stats, text, job = completion.stats, completion.text, self._wanted.jobs[index]
        return {
            "index": index,
            "content": text,
            "tokens": completion.token_ids if self._wanted.returns_tokens else [],
            "id_slot": job.slot or 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": _generation_settings(
                self._engine, job.options, self._wanted.samplers
            ),
            "prompt": job.prompt_text(self._engine.tokenizer.decode),
            "has_new_line": "\n" in text,
            "truncated": completion.finish_reason is Finish.CONTEXT,
            "stop_type": _STOP_TYPES[completion.finish_reason],
            "stopping_word": completion.stop or "",
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`completion_probabilities`, if `n_probs` asked for them."""
        options = self._wanted.jobs[0].options
        if options.logprobs is None:
            return {}
        entries = logprob_entries(logprobs, self._probability)
        if options.drawn_logprobs:
            entries = [_drawn(entry) | {"top_probs": [
                _drawn(other) for other in entry["top_logprobs"] if other["logprob"] > _MIN_LOGPROB
            ]} for entry in entries]  # fmt: skip
        return {"completion_probabilities": entries}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        spelling = self._engine.tokenizer.token_bytes.of(token)
        return {
            "id": token,
            "token": spelling.decode(errors="replace"),
            "bytes": list(spelling),
            "logprob": max(logprob, _MIN_LOGPROB),
        }


def _drawn(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry with the probability instead of its logarithm, as `post_sampling_probs` has it."""
    kept = {name: entry[name] for name in ("id", "token", "bytes")}
    return kept | {"prob": math.exp(entry["logprob"])}


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
                "params": _generation_settings(
                    engine, read_completion_options(request), DEFAULT_SAMPLERS
                ),
            },
            "total_slots": request.service.scheduler.parallel,
            "model_alias": request.model_name,
            "model_path": engine.model.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": engine.tokenizer.template,
            "bos_token": _text_or_nothing(wrapped.bos_token),
            "eos_token": _text_or_nothing(wrapped.eos_token),
            "build_info": f"akunu-py {__version__}",
        }
    )


def _text_or_nothing(value: Any) -> str:
    return value if isinstance(value, str) else ""


def slots(request: ApiRequest) -> Response:
    """What the requests do that are answered now, and the places for others; more than that while
    urgent ones make others pause. `/status` has the caches."""
    engine, service = request.engine, request.service
    held = {slot.id: slot for slot in engine.slots}
    running: dict[int, dict[str, Any]] = {}
    for job, events in service.active:
        sequence, answer = events.sequence, events.answer
        if sequence is None or answer is None or sequence not in service.scheduler.running:
            continue
        stats, most = answer.stats, job.options.max_tokens
        left = -1 if most is None else most - stats.generated_tokens
        cache = None if answer.slot_id is None else held.get(answer.slot_id)
        running[sequence.place] = {
            "id_task": sequence.arrival,
            "n_prompt_tokens": stats.prompt_tokens,
            "n_prompt_tokens_processed": answer.computed_tokens,
            "n_prompt_tokens_cache": stats.cached_tokens,
            "next_token": [
                {"has_next_token": True, "n_remain": left, "n_decoded": stats.generated_tokens}
            ],
            "kind": job.kind,
            "phase": sequence.phase,
            "n_bytes": 0 if cache is None else cache.nbytes,
        }
    places = max([service.scheduler.parallel, *(place + 1 for place in running)])
    return CompactJSONResponse(
        [
            {
                "id": place,
                "n_ctx": engine.context_limit,
                "speculative": engine.speculation.why_impossible is None,
                "batched": service.why_in_turns is None,
                "is_processing": place in running,
                **running.get(place, {}),
            }
            for place in range(places)
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
    return PlainTextResponse(
        "\n".join(lines) + "\n",
        headers={"Process-Start-Time-Unix": str(_STARTED)},
        media_type="text/plain; version=0.0.4",
    )


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
