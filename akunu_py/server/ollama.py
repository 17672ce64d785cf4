"""Ollama's contract, which Continue, Zed, Twinny and the `ollama` clients rely on.

There is one model, under any name. Missing fields have Ollama's defaults, except that
`repeat_penalty` is 1, because code repeats itself on purpose.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import Grammar, Options
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest, Contract, Endpoint, refuse_embeddings
from akunu_py.server.conversation import Blocks, Conversation, Step, Tools
from akunu_py.server.dialect import OLLAMA as OLLAMA_DIALECT
from akunu_py.server.dialect import read_options
from akunu_py.server.errors import ApiError
from akunu_py.server.fields import read_logprobs, read_messages, read_offered_tools
from akunu_py.server.job import Job
from akunu_py.server.ollama_models import ps, pull, served_name, show, tags, timestamp, version
from akunu_py.server.wire import (
    FINISH_REASONS,
    NDJSON,
    CompactJSONResponse,
    describe_logprob,
    json_line,
    logprob_entries,
    respond,
)
from akunu_py.text.fim import FILL_FORMATS
from akunu_py.text.stream import Piece

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_EFFORTS: Final = ("low", "medium", "high")
_BARE_TEMPLATES: Final = ("{{.Prompt}}", "{{ .Prompt }}")
"""Templates that add nothing to the prompt, as `raw` does."""
_NANOSECONDS: Final = 1_000_000_000


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": SENTENCE}`."""
    return {"error": error.message}


def generate(request: ApiRequest) -> Response:
    """`/api/generate`: completes a prompt; an empty one only checks that the model is loaded.

    The prompt is put into the model's chat template, except with `raw`, with a `suffix`, or if it
    contains the model's fill-in-the-middle tokens: then the client made the whole prompt itself.
    """
    body, engine = request.body, request.engine
    _refuse_images(body)
    prompt = body.text("prompt", default="")
    suffix = body.text("suffix", default="") or None
    system = body.text("system", default="")
    context = _read_context(body)
    template = body.text("template", default="").strip()
    if template and template not in _BARE_TEMPLATES:
        body.refuse("template", "cannot be served; the model has its own, and `raw` uses none")
    raw = body.flag("raw", default=False)
    if raw and (system or context):
        body.refuse("raw", "cannot be combined with `system` or `context`")
    options = _read_options(request)
    is_bare = raw or template or _spells_fill_tokens(engine, prompt)
    if not prompt and (is_bare or not suffix):
        return _loaded(request, {"response": ""})
    if is_bare or suffix:
        job = Job(prompt, options, None if is_bare else suffix)
        return _respond(request, job, _Reply(request))
    tokens = [*context, *_encode_question(engine, system, prompt, opens=not context)]
    return _respond(request, Job(tokens, options, is_chat=True), _Reply(request, prompt=tokens))


def chat(request: ApiRequest) -> Response:
    """`/api/chat`: continues a conversation; one without messages only checks that the model is
    loaded. Tools are ignored if the model's template has none."""
    body, tokenizer = request.body, request.engine.tokenizer
    options = _read_options(request)
    offered = read_offered_tools(body)
    tools = offered if tokenizer.answer_format.has_tools else []
    settings = _read_think(body)
    if not body.values("messages"):
        return _loaded(request, _message(()))
    for message in body.objects("messages"):
        _refuse_images(message)
    conversation = Conversation.begin(
        request.engine, read_messages(body), options, Tools(tuple(tools)), settings
    )
    return _respond(request, conversation.job, _Reply(request, conversation.blocks()))


OLLAMA: Final = Contract(
    name="ollama",
    endpoints=(
        Endpoint("POST", "/api/generate", generate),
        Endpoint("POST", "/api/chat", chat),
        Endpoint("POST", "/api/show", show),
        Endpoint("POST", "/api/pull", pull),
        Endpoint("POST", "/api/embed", refuse_embeddings),
        Endpoint("POST", "/api/embeddings", refuse_embeddings),
        Endpoint("GET", "/api/tags", tags),
        Endpoint("GET", "/api/ps", ps),
        Endpoint("GET", "/api/version", version),
    ),
    error_body=error_body,
    prefixes=("/api/",),
)


class _Reply:
    """Formats one completion.

    With `show_drafts`, which Ollama does not know, every object has its text in `pieces` as well,
    and each piece says whether it was drafted.

    Args:
        request: says whether drafts are shown.
        blocks: the reasoning, content and tool calls for `message`; None puts the text into
            `response`.
        prompt: the ids before a `response`, which `context` then repeats; empty for no `context`.
    """

    def __init__(
        self, request: ApiRequest, blocks: Blocks | None = None, prompt: Sequence[int] = ()
    ) -> None:
        self._begun = perf_counter()
        self._name = served_name(request)
        self._shows_drafts = request.body.flag("show_drafts", default=False)
        self._blocks = blocks
        self._spelling = request.engine.tokenizer.token_bytes
        self._prompt = prompt

    def feed(self, _: int, event: Event) -> Iterator[bytes]:
        text = self._text(event)
        shown = self._pieces(event.pieces) | self._logprobs(event.logprobs)
        if text or any(shown.values()):
            yield json_line(_head(self._name) | (text or self._no_text()) | {"done": False} | shown)

    def end(self, _: int, completion: Completion) -> Iterator[bytes]:
        yield json_line(_head(self._name) | self._no_text() | self._end(completion))

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        (completion,) = completions
        text = self._text(completion) or self._no_text()
        shown = self._pieces(completion.pieces) | self._logprobs(completion.logprobs)
        return _head(self._name) | text | shown | self._end(completion)

    def report(self, error: ApiError) -> bytes:
        return json_line(error_body(error))

    def _text(self, source: Event | Completion) -> dict[str, Any]:
        """The fields for the next text; none if no part of it is certain yet."""
        if self._blocks is None:
            return {"response": source.text} if source.text else {}
        message = _message(self._blocks.feed(source))
        return {} if message == _message(()) else message

    def _no_text(self) -> dict[str, Any]:
        return {"response": ""} if self._blocks is None else _message(())

    def _pieces(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        if not self._shows_drafts:
            return {}
        shown = [{"text": piece.text, "drafted": piece.drafted} for piece in pieces if piece.text]
        return {"pieces": shown}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """One object for each token, if log-probabilities are wanted."""
        if not entries:
            return {}
        return {"logprobs": logprob_entries(entries, partial(describe_logprob, self._spelling))}

    def _end(self, completion: Completion) -> dict[str, Any]:
        stats = completion.stats
        figures = {
            "done": True,
            "done_reason": FINISH_REASONS[completion.finish_reason],
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_s),
            "eval_count": stats.generated_tokens,
            "eval_duration": _nanoseconds(stats.decode_s),
        }
        if self._shows_drafts:
            figures |= {
                "prompt_cached_count": stats.cached_tokens,
                "forward_count": stats.target_forwards,
                "draft_count": stats.drafted,
                "draft_accepted_count": stats.accepted,
            }
        if self._prompt:
            figures["context"] = [*self._prompt, *completion.token_ids]
        return figures


def _head(name: str) -> dict[str, Any]:
    return {"model": name, "created_at": timestamp(datetime.now(UTC))}


def _loaded(request: ApiRequest, nothing: dict[str, Any]) -> Response:
    """The response to a request that only checks that the model is loaded."""
    done = {"done": True, "done_reason": "load"}
    return CompactJSONResponse(_head(served_name(request)) | nothing | done)


def _respond(request: ApiRequest, job: Job, reply: _Reply) -> Response:
    """Does a job; the response is streamed unless `stream` is false."""
    streams = request.body.flag("stream", default=True)
    return respond(request.service, [job], reply, streams=streams, media_type=NDJSON)


def _message(steps: Iterable[Step]) -> dict[str, Any]:
    """What has come of an answer. A call is sent when it is complete, because its arguments are an
    object; one that is cut is not sent."""
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
    return round(seconds * _NANOSECONDS)


def _read_options(request: ApiRequest) -> Options:
    """How to complete: `format`, and `options`.

    Without a positive `num_predict` the completion lasts to the end of the context. `num_ctx` is
    ignored: the context is as long as the server's.

    Raises:
        BodyError: if a field cannot be served.
    """
    body = request.body
    return read_options(
        request,
        OLLAMA_DIALECT,
        body=body.object("options"),
        grammar=_read_format(body),
        logprobs=read_logprobs(body),
    )


def _read_format(body: Body) -> Grammar | None:
    """`format`: `json`, a JSON schema, or an empty string for none."""
    wanted = body.any("format")
    if wanted is None or wanted == "":
        return None
    if wanted == "json":
        return Grammar.json_object()
    if not isinstance(wanted, dict):
        body.refuse("format", "must be `json` or a JSON schema")
    return Grammar.json_schema(wanted)


def _read_think(body: Body) -> dict[str, bool | str]:
    """`think`, as settings of a chat template: true, false, or the effort as a word."""
    wanted = body.any("think")
    if isinstance(wanted, str):
        if wanted not in _EFFORTS:
            body.refuse("think", f"must be true, false, or one of {', '.join(_EFFORTS)}")
        return {"enable_thinking": True, "reasoning_effort": wanted}
    thinks = body.flag("think", default=None)
    return {} if thinks is None else {"enable_thinking": thinks}


def _refuse_images(body: Body) -> None:
    """Raises BodyError if there are images."""
    if body.values("images"):
        body.refuse("images", "cannot be served; this model reads only text")


def _read_context(body: Body) -> list[int]:
    """The ids of the conversation so far, as the last response had them."""
    tokens = body.values("context")
    for index, token in enumerate(tokens):
        if type(token) is not int or token < 0:
            body.refuse(f"context[{index}]", "must be a token id")
    return tokens


def _encode_question(engine: "Engine", system: str, prompt: str, *, opens: bool) -> list[int]:
    """The ids of a question in the model's chat template, if it has one."""
    tokenizer = engine.tokenizer
    if tokenizer.has_chat_template:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        text = tokenizer.render_chat(messages, open_answer=True)
    else:
        text = "\n\n".join(part for part in (system, prompt) if part)
    return tokenizer.encode(text, special_tokens=opens, most=engine.context_limit)


def _spells_fill_tokens(engine: "Engine", prompt: str) -> bool:
    return any(
        layout.prefix in prompt and engine.tokenizer.token_id(layout.prefix) is not None
        for layout in FILL_FORMATS
    )
