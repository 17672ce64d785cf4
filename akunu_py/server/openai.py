"""OpenAI's completions, Mistral's `/v1/fim/completions`, and what they share with chat completions:
errors, chunks, choices, usage.

`echo` with `logprobs` includes the prompt's log-probabilities, which evaluation harnesses use to
score texts.
"""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import time
from typing import Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import MAX_ALTERNATIVES
from akunu_py.package import __version__
from akunu_py.rounds import Finish, Stats
from akunu_py.server.body import Body
from akunu_py.server.dialect import OPENAI, read_choices, read_options, read_prompts
from akunu_py.server.embeddings import embed_openai, rank
from akunu_py.server.errors import ApiError
from akunu_py.server.service import Job, Service, before_gap
from akunu_py.server.wire import (
    Endpoint,
    JobAnswer,
    Reply,
    bounded,
    finish_word,
    new_id,
    prompt_progress,
    spell,
    sse,
    timings,
)
from akunu_py.text.tokenizer import TokenBytes
from akunu_py.tokens import PromptLogprobs, TokenLogprob

DONE: Final = b"data: [DONE]\n\n"
_CODES: Final = {
    "exceed_context_size_error": "context_length_exceeded",
    "authentication_error": "invalid_api_key",
    "rate_limit_error": "rate_limit_exceeded",
    "not_found_error": "not_found",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """`{"error": {"message", "type", "param", "code"}}`."""
    kind = "invalid_request_error" if error.kind == "not_found_error" else error.kind
    is_model = error.kind == "not_found_error" and error.param == "model"
    code = "model_not_found" if is_model else _CODES.get(error.kind)
    named = {"message": error.message, "type": kind, "param": error.param}
    return {"error": {**named, "code": code, **error.facts}}


def report(error: ApiError) -> bytes:
    """The event for an error in a stream."""
    return sse(error_body(error))


_COMPLETION_DIALECT: Final = replace(OPENAI, max_tokens=16)

Lists = dict[str, list[Any]]


def respond(
    service: Service,
    body: Body,
    prompt_jobs: Sequence[Job],
    make_choice: "Callable[[int, Job], Choice]",
) -> Response:
    """Runs a job for every choice of every prompt."""
    per_prompt, jobs = read_choices(body, prompt_jobs, "n")
    choices = [make_choice(index, job) for index, job in enumerate(jobs)]
    streams = body.flag("stream", default=False)
    reply = _Reply(service, body, choices, per_prompt, streams=streams)
    if body.flag("verbose", default=False):  # llama-server's: the prompt of the template
        tokenizer = service.engine.tokenizer
        prompt = tokenizer.readable(jobs[0].prompt_text(tokenizer.decode))
        reply.verbose = {"__verbose": {"prompt": prompt}}
    return JobAnswer(service, jobs, reply, streams=streams)


class _Reply(Reply):
    """With our own `show_drafts`, the `pieces` of a chunk show what drafted each piece of text."""

    def __init__(
        self,
        service: Service,
        body: Body,
        choices: "Sequence[Choice]",
        per_prompt: int,
        *,
        streams: bool,
    ) -> None:
        self.verbose: dict[str, Any] = {}
        self._choices = choices
        self._per_prompt = per_prompt
        self._done: dict[int, Stats] = {}  # by the choice's index
        self._times_tokens = body.flag("timings_per_token", default=False)
        self._shows_drafts = body.flag("show_drafts", default=False)
        self._reports_usage = body.object("stream_options").flag("include_usage", default=False)
        self._begun = False
        self._head = {
            "id": new_id(choices[0].id_prefix),
            "object": choices[0].chunk_name if streams else choices[0].name,
            "created": int(time()),
            "model": service.model_name,
            "system_fingerprint": f"b{__version__}-akunu-py",
        }
        self._chunk_head = self._head | ({"usage": None} if self._reports_usage else {})

    def feed(self, index: int, event: Event) -> Iterator[bytes]:
        extra = prompt_progress(event)
        timed = {"timings": timings(event.stats, event.prompt_done)} if self._times_tokens else {}
        choices = self._choices[index].chunk_choices(event)
        pieces = _pieces(event) if self._shows_drafts else []
        if (extra or pieces) and not choices:
            choices = [self._choices[index].empty()]
        for choice in choices:
            # As in llama-server, the first chunk has a role, and no timings.
            more = (timed if self._begun or extra else {}) | extra
            if pieces and choice is choices[-1]:
                more["pieces"] = pieces
            yield sse({**self._chunk_head, "choices": [choice], **more})
            self._begun = True
        if event.finish_reason is not None:
            yield from self._end(index, event.stats, event.finish_reason)

    def _end(self, index: int, stats: Stats, finish: Finish) -> Iterator[bytes]:
        choice = self._choices[index]
        self._done[index] = stats
        is_last = len(self._done) == len(self._choices)
        figures = figures_of(self._done, self._per_prompt) | self.verbose
        extra = figures if is_last and not self._reports_usage else {}
        if not choice.ends_with_usage:
            extra = {name: value for name, value in extra.items() if name != "usage"}
        yield sse(self._chunk_head | {"choices": [choice.empty(finish)]} | extra)
        if is_last and self._reports_usage:
            yield sse(self._head | {"choices": []} | figures)
        if is_last:
            yield DONE

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        made = []
        for index, completion in enumerate(completions):
            made.append(self._choices[index].whole(completion))
            self._done[index] = completion.stats
        figures = figures_of(self._done, self._per_prompt)
        return self._head | {"choices": made} | figures | self.verbose

    def report(self, error: ApiError) -> bytes:
        return report(error)


def _pieces(event: Event) -> list[dict[str, str]]:
    words = ((piece.text[piece.thought :], piece.drafted) for piece in event.pieces)
    return [{"text": text, "drafted": drafted} for text, drafted in words if text]


def figures_of(done: Mapping[int, Stats], per_prompt: int) -> dict[str, Any]:
    """OpenAI's `usage` and llama-server's `timings`: sums over all choices, from their statistics
    by index. A prompt counts once, however many choices it has. All draft tokens count as predicted
    tokens."""
    sums, prompts = Stats(), Stats()
    for index, stats in done.items():
        sums.include(stats)
        if index % per_prompt == 0:
            prompts.include(stats)
    spans = [
        (stats.decode_since, stats.decode_since + stats.decode_s)
        for stats in done.values()
        if stats.decode_since is not None
    ]
    if len(spans) > 1:  # they are decoded together, or one after another
        sums.plain_s = 0.0
        sums.decode_s = max(end for _, end in spans) - min(begin for begin, _ in spans)
    usage = {
        "prompt_tokens": prompts.prompt_tokens,
        "completion_tokens": sums.generated_tokens,
        "total_tokens": prompts.prompt_tokens + sums.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": prompts.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sums.reasoning_tokens,
            "accepted_prediction_tokens": sums.accepted,
            "rejected_prediction_tokens": sums.drafted - sums.accepted,
        },
    }
    return {"usage": usage, "timings": timings(sums)}


def _complete(service: Service, body: Body) -> Response:
    logprobs = body.integer("logprobs", default=None, least=0, most=MAX_ALTERNATIVES)
    echoes = body.flag("echo", default=False)
    scores_prompt = echoes and logprobs is not None
    suffix = body.text("suffix", default=None)
    if scores_prompt and suffix is not None:
        body.refuse("logprobs", "are not supported for an echoed prompt with a suffix")
    best_of = body.integer("best_of", default=None, least=1)
    if best_of is not None and best_of != body.integer("n", default=1):
        body.refuse("best_of", "must equal `n` or be left out: every choice is returned")
    options = read_options(service, body, _COMPLETION_DIALECT, logprobs=logprobs)
    options = replace(options, scores_prompt=scores_prompt)
    spelling = service.engine.tokenizer.token_bytes

    def spelled(tokens: Sequence[int]) -> str:
        return b"".join(map(spelling.of, tokens)).decode(errors="replace")

    def make_choice(index: int, job: Job) -> Choice:
        return Choice(index, job.echo, None if logprobs is None else _Logprobs(spelling))

    jobs = [Job(before_gap(prompt, suffix), options) for prompt in read_prompts(service, body)]
    for job in jobs:
        job.echo = job.prompt_text(spelled) if echoes else ""
    return respond(service, body, jobs, make_choice)


def _fill(service: Service, body: Body) -> Response:
    body.require("prompt")
    prompt, suffix = body.text("prompt", default=""), body.text("suffix", default=None)
    job = Job(before_gap(prompt, suffix), read_options(service, body, OPENAI))
    return respond(service, body, [job], lambda index, _: _FimChoice(index))


class Choice:
    """A completion as a choice in a response or in the chunks of a stream; this class is for
    `/v1/completions`. `echo` is the text before the completion. The names are those in responses;
    `ends_with_usage` is whether the last chunk always has the usage."""

    id_prefix = "cmpl-"
    name = chunk_name = "text_completion"
    ends_with_usage = False

    def __init__(self, index: int, echo: str = "", logprobs: "_Logprobs | None" = None) -> None:
        self._index = index
        self._echo = echo
        self._logprobs = logprobs

    def chunk_choices(self, event: Event) -> list[dict[str, Any]]:
        text, self._echo = self._echo + event.text, ""
        logprobs = None if self._logprobs is None else self._logprobs.take(event, text)
        if not text and not (logprobs and logprobs["tokens"]):
            return []
        return [self._choice(text, logprobs, None)]

    def empty(self, finish: Finish | None = None) -> dict[str, Any]:
        """A choice without text, which may end the stream."""
        return self._choice("", None, finish and finish_word(finish))

    def whole(self, completion: Completion) -> dict[str, Any]:
        text = self._echo + completion.text
        logprobs = None if self._logprobs is None else self._logprobs.take(completion, text)
        return self._choice(text, logprobs, finish_word(completion.finish_reason))

    def _choice(self, text: str, logprobs: Lists | None, finish: str | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class _FimChoice(Choice):
    """A choice of `/v1/fim/completions`. Every delta has a text, even an empty one, because Tabby
    reads nothing else."""

    id_prefix = "fim-"
    name, chunk_name = "chat.completion", "chat.completion.chunk"
    ends_with_usage = True

    def whole(self, completion: Completion) -> dict[str, Any]:
        choice = super().whole(completion)
        return {{"delta": "message"}.get(name, name): value for name, value in choice.items()}

    def _choice(self, text: str, _: Lists | None, finish: str | None) -> dict[str, Any]:
        delta = {"role": "assistant", "content": text}
        return {"index": self._index, "delta": delta, "finish_reason": finish}


class _Logprobs:
    """Log-probabilities as parallel lists, with the offset of each token in the text."""

    def __init__(self, spelling: TokenBytes) -> None:
        self._spelling = spelling
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._scores_prompt = False

    def take(self, source: Event | Completion, text: str) -> Lists:
        prompt = source.prompt_logprobs
        self._scores_prompt = self._scores_prompt or prompt is not None
        entries = list(source.logprobs)
        if self._scores_prompt and source.end_logprob is not None:
            # Clients that score a prompt assume that the last entry is the generated token.
            entries.append(source.end_logprob)
        return self._lists(entries) if prompt is None else self._with_prompt(prompt, text, entries)

    def _with_prompt(self, prompt: PromptLogprobs, text: str, entries: list[TokenLogprob]) -> Lists:
        first = self._spelling.of(prompt.first)
        if text.encode(errors="replace").startswith(first):  # not if the tokenizer added it
            self._offset = len(self._decoder.decode(first))
        opening = {
            "tokens": spell(self._spelling, prompt.first),
            "token_logprobs": None,
            "top_logprobs": None,
            "text_offset": 0,
        }
        following = self._lists([*prompt.following, *entries])
        return {name: [opening[name], *values] for name, values in following.items()}

    def _lists(self, entries: Sequence[TokenLogprob]) -> Lists:
        """The lists for the next tokens; the alternatives always include the token itself."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._spelling.of(entry.token)))
        return {
            "tokens": [spell(self._spelling, entry.token) for entry in entries],
            "token_logprobs": [bounded(entry.logprob) for entry in entries],
            "top_logprobs": [partial(self._likely, entry) for entry in entries],
            "text_offset": offsets,
        }

    def _likely(self, entry: TokenLogprob) -> dict[str, float]:
        return {
            spell(self._spelling, token): bounded(logprob)
            for token, logprob in ((entry.token, entry.logprob), *entry.alternatives)
        }


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/completions", _complete),
    Endpoint("POST", "/v1/beta/completions", _complete),
    Endpoint("POST", "/v1/fim/completions", _fill),
    Endpoint("POST", "/fim/completions", _fill),
    Endpoint("POST", "/v1/embeddings", embed_openai, is_slow=True, needs="embedding"),
    Endpoint("POST", "/v1/rerank", rank, is_slow=True, needs="reranking"),
)
