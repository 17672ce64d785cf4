"""Ollama's API, which Continue, Zed, Twinny and the `ollama` clients use; its endpoints about
models are in `models.py`."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import Grammar, Options
from akunu_py.package import __version__
from akunu_py.server.body import Body, read_keep_alive
from akunu_py.server.conversation import (
    Blocks,
    ChatJob,
    Tools,
    read_messages,
    read_offered_tools,
)
from akunu_py.server.dialect import OLLAMA, read_logprobs, read_options
from akunu_py.server.embeddings import embed_ollama, embed_one
from akunu_py.server.errors import ApiError
from akunu_py.server.grammars import schema_grammar
from akunu_py.server.models import tagged, timestamp
from akunu_py.server.pool import Pool
from akunu_py.server.service import Job, Service, before_gap
from akunu_py.server.wire import (
    LOAD_S,
    NDJSON,
    Endpoint,
    JobAnswer,
    JSONAnswer,
    PoolEndpoint,
    Reply,
    described_logprobs,
    finish_word,
    json_line,
)
from akunu_py.text.answer_parser import AnswerFormat, Step
from akunu_py.text.fim import FILL_FORMATS

_SPOKEN_VERSION: Final = "0.12.6"
"""The version of Ollama with this API; clients refuse servers that look too old."""

_EFFORTS: Final = ("low", "medium", "high")
_BARE_TEMPLATES: Final = ("{{.Prompt}}", "{{ .Prompt }}")
"""Templates that add nothing to the prompt, as `raw` does."""
_NOTHING: Final = {"message": {"role": "assistant", "content": ""}}


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": SENTENCE}`."""
    return {"error": error.message}


def _generate(service: Service, body: Body) -> Response:
    """The prompt is put into the model's chat template, except with `raw`, with a `suffix`, or if
    it contains the model's fill-in-the-middle tokens: the client then made the whole prompt."""
    tokenizer = service.engine.tokenizer
    _refuse_images(body)
    prompt = body.text("prompt", default="")
    suffix = body.text("suffix", default="") or None
    system = body.text("system", default="")
    context = _read_context(body)
    template = body.text("template", default="").strip()
    if template and template not in _BARE_TEMPLATES:
        body.refuse("template", "is not supported; the model has its own, and `raw` uses none")
    raw = body.flag("raw", default=False)
    if raw and (system or context):
        body.refuse("raw", "cannot be combined with `system` or `context`")
    options = _read_options(service, body)
    marks = (layout.prefix for layout in FILL_FORMATS if layout.prefix in prompt)
    is_bare = raw or template or any(tokenizer.token_id(mark) is not None for mark in marks)
    if not prompt and (is_bare or not suffix):
        return _loaded(service, body, {"response": ""})
    if is_bare or suffix:
        gap = before_gap(prompt, None if is_bare else suffix)
        return _respond(service, body, Job(gap, options))
    job: Job
    if tokenizer.has_chat_template:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        job = ChatJob.begin(
            tokenizer, messages, options, Tools(), _read_think(body, tokenizer.answer_format)
        )
    else:
        job = Job("\n\n".join(part for part in (system, prompt) if part), options, is_chat=True)
    limit = service.engine.context_limit
    tokens = tokenizer.encode(str(job.prompt), special_tokens=not context, most=limit)
    job.prompt = tokens = [*context, *tokens]
    return _respond(service, body, job, context=tokens)


def _chat(service: Service, body: Body) -> Response:
    tokenizer = service.engine.tokenizer
    options = _read_options(service, body)
    tools = Tools(tuple(read_offered_tools(body)))
    settings = _read_think(body, tokenizer.answer_format)
    if not body.values("messages"):
        return _loaded(service, body, _NOTHING)
    for message in body.objects("messages"):
        _refuse_images(message)
    job = ChatJob.begin(tokenizer, read_messages(body), options, tools, settings)
    return _respond(service, body, job, has_messages=True)


def _respond(
    service: Service,
    body: Body,
    job: Job,
    *,
    has_messages: bool = False,
    context: Sequence[int] = (),
) -> Response:
    streams = body.flag("stream", default=True)
    blocks = job.blocks() if isinstance(job, ChatJob) else None
    reply = _Reply(service, body, blocks, has_messages, context)
    return JobAnswer(service, [job], reply, streams=streams, media_type=NDJSON)


class _Reply(Reply):
    """The end repeats the `context`, the ids before a `response`, if there are any."""

    def __init__(
        self,
        service: Service,
        body: Body,
        blocks: Blocks | None,
        has_messages: bool,
        context: Sequence[int],
    ) -> None:
        self._begun = perf_counter() - LOAD_S.get()
        self._load_s = LOAD_S.get()
        self._service = service
        self._blocks = blocks
        self._context = list(context)
        self._has_messages = has_messages
        self._no_text: dict[str, Any] = _NOTHING if has_messages else {"response": ""}

    def keep_alive(self) -> bytes:
        return b""  # lines of JSON have no comments

    def feed(self, _: int, event: Event) -> Iterator[bytes]:
        text, logprobs = self._text(event), self._logprobs(event)
        if text or logprobs:
            text = text or self._no_text
            yield json_line(_head(self._service) | text | {"done": False} | logprobs)
        if self._context:
            self._context += event.tokens
        if event.finish_reason is not None:
            yield json_line(_head(self._service) | self._no_text | self._end(event))

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        (completion,) = completions
        text = self._text(completion) or self._no_text
        if self._context:
            self._context += completion.token_ids
        return _head(self._service) | text | self._logprobs(completion) | self._end(completion)

    def report(self, error: ApiError) -> bytes:
        return json_line(error_body(error))

    def _text(self, source: Event | Completion) -> dict[str, Any]:
        if self._blocks is None:
            return {"response": source.text} if source.text else {}
        found = _message(self._blocks.feed(source))
        if found == _NOTHING:
            return {}
        if self._has_messages:
            return found
        said = found["message"]
        thought = {"thinking": said["thinking"]} if "thinking" in said else {}
        return {"response": said["content"]} | thought

    def _logprobs(self, source: Event | Completion) -> dict[str, Any]:
        if not source.logprobs:
            return {}
        spelling = self._service.engine.tokenizer.token_bytes
        return {"logprobs": described_logprobs(source.logprobs, spelling)}

    def _end(self, source: Event | Completion) -> dict[str, Any]:
        stats = source.stats
        figures = {
            "done": True,
            "done_reason": finish_word(source.finish_reason),
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": _nanoseconds(self._load_s),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_s),
            "eval_count": stats.generated_tokens,
            "eval_duration": _nanoseconds(stats.decode_s),
        }
        return figures | ({"context": self._context} if self._context else {})


def _head(service: Service) -> dict[str, Any]:
    return {"model": tagged(service.model_name), "created_at": timestamp(datetime.now(UTC))}


def _loaded(service: Service, body: Body, nothing: dict[str, Any]) -> Response:
    reason = "unload" if read_keep_alive(body) == 0 else "load"
    return JSONAnswer(_head(service) | nothing | {"done": True, "done_reason": reason})


def _message(steps: Iterable[Step]) -> dict[str, Any]:
    """A call is sent only when it is complete, because its arguments are an object; a cut call is
    not sent."""
    texts = {"text": "", "reasoning": ""}
    calls = []
    for what, block, text in steps:
        if block.call is None:
            texts[block.kind] += text
        elif what == "stop" and not block.cut:
            calls.append({"function": {"name": block.call.name, "arguments": block.call.input}})
    message: dict[str, Any] = {"role": "assistant", "content": texts["text"]}
    message |= {"thinking": texts["reasoning"]} if texts["reasoning"] else {}
    return {"message": message | ({"tool_calls": calls} if calls else {})}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)


def _read_options(service: Service, body: Body) -> Options:
    """`num_ctx` is ignored: the server's context window applies."""
    part, grammar, logprobs = body.object("options"), _read_format(body), read_logprobs(body)
    return read_options(service, body, OLLAMA, part=part, grammar=grammar, logprobs=logprobs)


def _read_format(body: Body) -> Grammar | None:
    wanted = body.any("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return Grammar.json_object()
    if not isinstance(wanted, dict):
        body.refuse("format", "must be `json` or a JSON schema")
    return schema_grammar(wanted)


def _read_think(body: Body, format_: AnswerFormat) -> dict[str, bool | str]:
    wanted = body.any("think")
    if wanted and not format_.think_start:
        body.refuse("think", "must be false or left out, as this model does not think")
    if isinstance(wanted, str):
        if wanted not in _EFFORTS:
            body.refuse("think", f"must be true, false, or one of {', '.join(_EFFORTS)}")
        return {"enable_thinking": True, "reasoning_effort": wanted}
    thinks = body.flag("think", default=None)
    if thinks is False and format_.headers:
        body.refuse("think", "cannot be false, as this model always thinks; `low` is least")
    return {} if thinks is None else {"enable_thinking": thinks}


def _refuse_images(body: Body) -> None:
    if body.values("images"):
        body.refuse("images", "are not supported; this model reads only text")


def _read_context(body: Body) -> list[int]:
    tokens = body.values("context")
    for index, token in enumerate(tokens):
        if type(token) is not int or token < 0:
            body.refuse(f"context[{index}]", "must be a token id")
    return tokens


def _version(_pool: Pool, _body: Body) -> Response:
    return JSONAnswer({"version": _SPOKEN_VERSION, "akunu_py": __version__})


ENDPOINTS: Final = (
    Endpoint("POST", "/api/generate", _generate),
    Endpoint("POST", "/api/chat", _chat),
    PoolEndpoint("GET", "/api/version", _version),
    Endpoint("POST", "/api/embed", embed_ollama, is_slow=True, needs="embedding"),
    Endpoint("POST", "/api/embeddings", embed_one, is_slow=True, needs="embedding"),
)
