"""OpenAI's `/v1/completions` and Mistral's `/v1/fim/completions`.

The first one continues a prompt, or fills the gap before a `suffix`. `echo` with `logprobs`
includes the prompt's log-probabilities, with which evaluation harnesses score texts.
"""

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from akunu_py.events import Completion, Event
from akunu_py.options import MAX_ALTERNATIVES
from akunu_py.round import Finish
from akunu_py.sampling.logprobs import PromptLogprobs, TokenLogprob
from akunu_py.server.body import Body
from akunu_py.server.dialect import OPENAI, read_options
from akunu_py.server.openai import ResponseKind, respond
from akunu_py.server.service import Job, Service, before_gap
from akunu_py.server.wire import Endpoint, bounded, finish_word, spell
from akunu_py.text.token_bytes import TokenBytes

_COMPLETION: Final = ResponseKind("cmpl-", "text_completion", "text_completion")
_FIM: Final = ResponseKind("fim-", "chat.completion", "chat.completion.chunk", ends_with_usage=True)
_DIALECT: Final = replace(OPENAI, max_tokens=16)

Lists = dict[str, list[Any]]


def _complete(service: Service, body: Body) -> Response:
    """`/v1/completions`: completes a prompt, or several."""
    logprobs = body.integer("logprobs", default=None, least=0, most=MAX_ALTERNATIVES)
    echoes = body.flag("echo", default=False)
    scores_prompt = echoes and logprobs is not None
    suffix = body.text("suffix", default=None)
    if scores_prompt and suffix is not None:
        body.refuse("logprobs", "cannot be served for an echoed prompt that has a suffix")
    best_of = body.integer("best_of", default=None, least=1)
    if best_of is not None and best_of != body.integer("n", default=1):
        body.refuse("best_of", "must equal `n` or be left out: every choice is returned")
    options = read_options(service, body, _DIALECT, logprobs=logprobs)
    options = replace(options, scores_prompt=scores_prompt)
    spelling = service.engine.tokenizer.token_bytes

    def spelled(tokens: Sequence[int]) -> str:
        return b"".join(map(spelling.of, tokens)).decode(errors="replace")

    def make_choice(index: int, job: Job) -> _CompletionChoice:
        echo = job.prompt_text(spelled) if echoes else ""
        return _CompletionChoice(index, echo, None if logprobs is None else _Logprobs(spelling))

    jobs = [Job(before_gap(prompt, suffix), options) for prompt in _read_prompts(body)]
    return respond(service, body, jobs, _COMPLETION, make_choice)


def _fill(service: Service, body: Body) -> Response:
    """`/v1/fim/completions`: fills the gap between `prompt` and `suffix`, or continues `prompt` if
    there is no suffix."""
    body.require("prompt")
    prompt, suffix = body.text("prompt", default=""), body.text("suffix", default=None)
    job = Job(before_gap(prompt, suffix), read_options(service, body, OPENAI))
    return respond(service, body, [job], _FIM, lambda index, _: _FimChoice(index))


ENDPOINTS: Final = (
    Endpoint("POST", "/v1/completions", _complete),
    Endpoint("POST", "/v1/beta/completions", _complete),
    Endpoint("POST", "/v1/fim/completions", _fill),
    Endpoint("POST", "/fim/completions", _fill),
)


def _read_prompts(body: Body) -> list[str | list[int]]:
    body.require("prompt")
    given = body.any("prompt")
    if isinstance(given, list) and given:
        if all(_is_id(entry) for entry in given):
            return [given]
        if all(isinstance(entry, list) and all(map(_is_id, entry)) for entry in given):
            return given
        return list(body.texts("prompt"))
    return [body.text("prompt", default="")]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _CompletionChoice:
    """A choice of `/v1/completions`; `echo` is the text before the completion."""

    reasoning_tokens = 0

    def __init__(self, index: int, echo: str, logprobs: "_Logprobs | None") -> None:
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
        return self._choice("", None, finish and finish_word(finish))

    def whole(self, completion: Completion) -> dict[str, Any]:
        text = self._echo + completion.text
        logprobs = None if self._logprobs is None else self._logprobs.take(completion, text)
        return self._choice(text, logprobs, finish_word(completion.finish_reason))

    def _choice(self, text: str, logprobs: Lists | None, finish: str | None) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class _FimChoice(_CompletionChoice):
    """A choice of `/v1/fim/completions`. Every delta has a text, even an empty one, because Tabby
    reads nothing else."""

    def __init__(self, index: int) -> None:
        super().__init__(index, "", None)

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
            # Clients that score a prompt take the last entry for the one generated token.
            entries.append(source.end_logprob)
        return self._lists(entries) if prompt is None else self._with_prompt(prompt, text, entries)

    def _with_prompt(self, prompt: PromptLogprobs, text: str, entries: list[TokenLogprob]) -> Lists:
        """The lists, which begin with those of the echoed prompt; its first token has no values."""
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
            "top_logprobs": [
                {
                    spell(self._spelling, token): bounded(logprob)
                    for token, logprob in ((entry.token, entry.logprob), *entry.alternatives)
                }
                for entry in entries
            ],
            "text_offset": offsets,
        }
