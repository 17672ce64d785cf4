"""llama-server's API, which llama.vim, llama.vscode, Tabby, Twinny and Continue use.

Its monitoring endpoints are in `monitor.py`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unicodedata import normalize

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import MAX_ALTERNATIVES, Options
from akunu_py.package import __version__
from akunu_py.prompt import PromptInput
from akunu_py.rounds import Finish
from akunu_py.server.body import MAX_PATH, Body
from akunu_py.server.dialect import (
    DEFAULT_SAMPLERS,
    FORBIDDEN,
    LLAMA,
    read_choices,
    read_options,
    read_prompts,
    read_samplers,
)
from akunu_py.server.embeddings import embed_llama, rank
from akunu_py.server.errors import ApiError
from akunu_py.server.openai_chat import read_chat
from akunu_py.server.pool import Pool
from akunu_py.server.service import Job, Service
from akunu_py.server.wire import (
    Answer,
    Endpoint,
    JobAnswer,
    JSONAnswer,
    PoolEndpoint,
    Reply,
    compact_json,
    logprob_entries,
    prompt_progress,
    sse,
    timings,
)
from akunu_py.text.fim import FillRequest, RepositoryFile
from akunu_py.tokens import TokenLogprob

_MAX_FILES: Final = 1024
_MAX_TOKENIZED: Final = 1 << 20
"""The most bytes of a text to tokenize, in the longest form that a tokenizer may give it: NFKC can
turn one character into 18. There are no more tokens than bytes."""
_AT_ONCE: Final = 1 << 12
_MAX_FIELDS: Final = 64
_MAX_FIELD_LENGTH: Final = 128
_STOP_TYPES: Final = {Finish.EOS: "eos", Finish.STOP: "word"}
_MIN_LOGPROB: Final = -1e9
"""The log-probability of an impossible token, because JSON has no infinity."""
_ABSENT: Final = object()
_SHARED: Final = ("temperature", "top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold",
                  "presence_penalty", "frequency_penalty")  # fmt: skip
"""Sampler settings with the same names here."""
_OFF: Final = {"typical_p": 1.0, "dynatemp_range": 0.0, "mirostat": 0, "dry_multiplier": 0.0,
               "top_n_sigma": -1.0, "adaptive_target": -1.0, "adaptive_decay": 0.9}  # fmt: skip
"""llama-server's settings of samplers that are not supported; they are always off."""


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {"code", "message", "type"}}`."""
    named: dict[str, Any] = {"code": error.status, "message": error.message, "type": error.kind}
    return {"error": {**named, **error.facts}}


def report(error: ApiError) -> bytes:
    """The event for an error in a stream."""
    return sse(error_body(error))


def _complete(service: Service, body: Body) -> Response:
    options = _read_options(service, body)
    return _respond(service, body, read_prompts(service, body), options)


def _infill(service: Service, body: Body) -> Response:
    body.require("input_prefix", "input_suffix")
    files = tuple(map(_file, body.objects("input_extra", most=_MAX_FILES)))  # the latest last
    gap = FillRequest(
        body.text("input_prefix", default="") + body.text("prompt", default=""),
        body.text("input_suffix", default=""),
        files,
    )
    # Drafts may be copied from files even if these do not fit into the prompt.
    options = _read_options(service, body)
    references = (*options.references, *(file.text for file in files))
    return _respond(service, body, [gap], replace(options, references=references))


def _respond(
    service: Service, body: Body, prompts: Sequence[PromptInput], options: Options
) -> Response:
    """Completes prompts, each with every choice. An `id_slot` of -1 means no slot, and a
    `t_max_predict_ms` of 0 or less no limit."""
    given = body.integer("id_slot", default=-1, least=-1)
    slot = None if given < 0 else given
    predict_ms = body.number("t_max_predict_ms", default=0.0)
    predict_s = predict_ms / 1000 if predict_ms > 0 else None
    fields = body.texts("response_fields", most=_MAX_FIELDS, longest=_MAX_FIELD_LENGTH)
    jobs = [Job(prompt, options, predict_s=predict_s, slot=slot) for prompt in prompts]
    if not fields or "prompt" in fields:
        for job in jobs:
            job.echo = job.prompt_text(service.engine.tokenizer.decode)
    _, variants = read_choices(body, jobs, "n_cmpl", "n")
    reply = _Reply(service, body, variants, fields)
    return JobAnswer(service, variants, reply, streams=body.flag("stream", default=False))


def _file(extra: Body) -> RepositoryFile:
    extra.require("text")
    name = extra.text("filename", default="", longest=MAX_PATH)
    return RepositoryFile(name, extra.text("text", default=""))


def _read_options(service: Service, body: Body) -> Options:
    alternatives = body.integer("n_probs", default=0, least=0, most=MAX_ALTERNATIVES)
    return read_options(service, body, LLAMA, logprobs=alternatives or None)


class _Reply(Reply):
    def __init__(
        self, service: Service, body: Body, jobs: Sequence[Job], fields: Sequence[str]
    ) -> None:
        self._service = service
        self._jobs = jobs
        self._has_newline = [False] * len(jobs)
        self._samplers = read_samplers(body)
        self._returns_tokens = body.flag("return_tokens", default=False)
        self._times_tokens = body.flag("timings_per_token", default=False)
        self._fields = fields

    def feed(self, index: int, event: Event) -> Iterator[bytes]:
        stats, progress = event.stats, prompt_progress(event)
        chunk: dict[str, Any] = {
            "index": index,
            "stop": False,
            "id_slot": self._jobs[index].slot or 0,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
        }
        if self._times_tokens:
            chunk["timings"] = timings(stats, event.prompt_done)
        contents = [{"content": "", "tokens": []}] if progress else self._contents(event)
        for content in contents:
            self._has_newline[index] |= "\n" in content["content"]
            yield sse(chunk | content | progress)
        if event.finish_reason is not None:
            yield sse(self._result(index, event, {}))

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

    def whole(self, completions: Sequence[Completion]) -> Any:
        results = []
        for index, completion in enumerate(completions):
            self._has_newline[index] = "\n" in completion.text
            tokens = completion.token_ids if self._returns_tokens else []
            own = {"content": completion.text, "tokens": tokens}
            own |= self._probabilities(completion.logprobs)
            results.append(self._result(index, completion, own))
        return results[0] if len(results) == 1 else results

    def report(self, error: ApiError) -> bytes:
        return report(error)

    def _result(
        self, index: int, source: Event | Completion, own: dict[str, Any]
    ) -> dict[str, Any]:
        stats, job, finish = source.stats, self._jobs[index], source.finish_reason
        result = {
            "index": index,
            "content": "",
            "tokens": [],
            "id_slot": job.slot or 0,
            "stop": True,
            "model": self._service.model_name,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": _generation_settings(self._service, job.options, self._samplers),
            "prompt": job.echo,
            "has_new_line": self._has_newline[index],
            "truncated": finish is Finish.CONTEXT,
            "stop_type": _STOP_TYPES.get(finish, "limit") if finish else "limit",
            "stopping_word": source.stop or "",
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }
        return _pick(result | own, self._fields)

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """With `post_sampling_probs`, the probabilities instead of their logarithms."""
        options = self._jobs[0].options
        if options.logprobs is None:
            return {}
        if options.drawn_logprobs:
            drawn = [partial(self._drawn, entry) for entry in logprobs]
            return {"completion_probabilities": drawn}
        return {"completion_probabilities": logprob_entries(logprobs, self._probability)}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        spelling = self._service.engine.tokenizer.token_bytes.of(token)
        return {
            "id": token,
            "token": spelling.decode(errors="replace"),
            "bytes": list(spelling),
            "logprob": max(logprob, _MIN_LOGPROB),
        }

    def _drawn(self, entry: TokenLogprob) -> dict[str, Any]:
        def drawn(token: int, logprob: float) -> dict[str, Any]:
            found = self._probability(token, logprob)
            prob = math.exp(found.pop("logprob"))
            return found | {"prob": prob}

        top = [drawn(*other) for other in entry.alternatives if other[1] > _MIN_LOGPROB]
        return drawn(entry.token, entry.logprob) | {"top_probs": top}


def _generation_settings(
    service: Service, options: Options, samplers: Sequence[str]
) -> dict[str, Any]:
    return {
        "n_ctx": service.engine.context_limit,
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "seed": -1 if options.seed is None else options.seed,
        "repeat_penalty": options.repetition_penalty,
        "repeat_last_n": options.repetition_context_size,
        "logit_bias": partial(_described_biases, options),
        "stop": list(options.stop),
        "n_probs": options.logprobs or 0,
        "samplers": list(samplers),
        **{name: getattr(options, name) for name in _SHARED},
        **_OFF,
        "speculative.n_max": 0 if not options.drafts else options.num_draft_tokens,
    }


def _described_biases(options: Options) -> list[dict[str, Any]]:
    return [
        {"token": token, "bias": None if bias == FORBIDDEN else bias}
        for token, bias in options.logit_bias
    ]


def _pick(result: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The wanted fields; an empty list means all. A nested field, such as `timings/prompt_n`, keeps
    its whole name and is not nested in the result. Unknown fields are left out."""
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


def _tokenize(service: Service, body: Body) -> Response:
    """`content` as ids. `add_special` puts the opening token first; with `parse_special: false`,
    spelled-out special tokens are plain text; `with_pieces` adds the text of each id."""
    tokenizer, content = service.engine.tokenizer, body.text("content", default="")
    parts = (content[at : at + _AT_ONCE] for at in range(0, len(content), _AT_ONCE))
    if (
        len(content.encode()) > _MAX_TOKENIZED
        or sum(len(normalize("NFKC", part).encode()) for part in parts) > _MAX_TOKENIZED
    ):
        body.refuse("content", f"is longer than {_MAX_TOKENIZED} bytes")
    opens = body.flag("add_special", default=False)
    if body.flag("parse_special", default=True):
        tokens = tokenizer.encode(content, special_tokens=opens)
    else:
        opening = tokenizer.encode("") if opens else []
        tokens = opening + tokenizer.encode_plain(content)
    has_pieces = body.flag("with_pieces", default=False)

    def entry(token: int) -> Any:
        return {"id": token, "piece": tokenizer.decode([token])} if has_pieces else token

    # One by one, because nothing else runs while JSON is written.
    written = {token: compact_json(entry(token)) for token in set(tokens)}
    whole = b'{"tokens":[' + b",".join(written[token] for token in tokens) + b"]}"
    return Answer(whole, media_type=JSONAnswer.media_type)


def _detokenize(service: Service, body: Body) -> Response:
    engine, tokens = service.engine, body.values("tokens")
    for index, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < engine.model.vocabulary_size:
            body.refuse(f"tokens[{index}]", "must be an id of the model's vocabulary")
    return JSONAnswer({"content": engine.tokenizer.decode(tokens)})


def _apply_template(service: Service, body: Body) -> Response:
    prompt = str(read_chat(service, body).prompt)
    return JSONAnswer({"prompt": service.engine.tokenizer.readable(prompt)})


def _props(service: Service, nothing: Body) -> Response:
    engine = service.engine
    bos, eos = engine.tokenizer.wrapped.bos_token, engine.tokenizer.wrapped.eos_token
    params = _generation_settings(service, _read_options(service, nothing), DEFAULT_SAMPLERS)
    return JSONAnswer(
        {
            "default_generation_settings": {"n_ctx": engine.context_limit, "params": params},
            "total_slots": service.worker.scheduler.parallel,
            "model_alias": service.model_name,
            "model_path": engine.model.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": engine.tokenizer.template,
            "bos_token": bos if isinstance(bos, str) else "",
            "eos_token": eos if isinstance(eos, str) else "",
            "build_info": f"akunu-py {__version__}",
        }
    )


def _lora_adapters(_pool: Pool, _body: Body) -> Response:
    return JSONAnswer([])  # an adapter is part of the model from the start


ENDPOINTS: Final = (
    Endpoint("POST", "/infill", _infill),
    Endpoint("POST", "/completion", _complete),
    Endpoint("POST", "/completions", _complete),
    Endpoint("POST", "/tokenize", _tokenize, needs=None),
    Endpoint("POST", "/detokenize", _detokenize, needs=None),
    Endpoint("POST", "/apply-template", _apply_template, needs=None),
    Endpoint("GET", "/props", _props, needs=None),
    PoolEndpoint("GET", "/lora-adapters", _lora_adapters),
    Endpoint("POST", "/embedding", embed_llama, is_slow=True, needs="embedding"),
    Endpoint("POST", "/embeddings", embed_llama, is_slow=True, needs="embedding"),
    Endpoint("POST", "/rerank", rank, is_slow=True, needs="reranking"),
    Endpoint("POST", "/reranking", rank, is_slow=True, needs="reranking"),
    Endpoint("POST", "/v1/reranking", rank, is_slow=True, needs="reranking"),
)
