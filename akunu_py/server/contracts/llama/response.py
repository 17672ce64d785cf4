"""What llama-server answers: results, partial ones, timings, and fields picked out of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from akunu_py.options import Options
from akunu_py.request import Event
from akunu_py.sampling.logprobs import TokenLogprob
from akunu_py.server.contracts.llama.request import CompletionRequest
from akunu_py.server.timings import timings
from akunu_py.stats import Finish, Stats

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STOP_TYPES: Final = {
    Finish.EOS: "eos",
    Finish.STOP: "word",
    Finish.LENGTH: "limit",
    Finish.CONTEXT: "limit",
    Finish.CANCELLED: "limit",
}

_LEAST_LOGPROB: Final = -1e9
"""What an impossible token has, since JSON knows no infinity."""


class Result:
    """One answer in the making.

    Args:
        engine: that gives it.
        request: what was asked for.
        index: of the answer among those of the request.
    """

    def __init__(self, engine: "Engine", request: CompletionRequest, index: int) -> None:
        self._engine = engine
        self._request = request
        self._job = request.jobs[index]
        self._index = index
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._stats = Stats()
        self._finish = Finish.CANCELLED

    def add(self, event: Event) -> None:
        """Takes the next event."""
        self._text.append(event.text)
        self._tokens.extend(event.tokens)
        self._logprobs.extend(event.logprobs)
        self._stats = event.stats
        self._finish = event.finish_reason or self._finish

    def partial(self, event: Event) -> dict[str, Any]:
        """The streamed chunk for an event."""
        stats = event.stats
        chunk: dict[str, Any] = {
            "index": self._index,
            "content": event.text,
            "tokens": list(event.tokens),
            "stop": False,
            "id_slot": self._job.slot or 0,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
        }
        if self._request.times_tokens:
            chunk["timings"] = timings(stats)
        return chunk | self._probabilities(event.logprobs)

    def final(self) -> dict[str, Any]:
        """The whole answer, or what ends a stream of it, which had the text before."""
        streams = self._request.streams
        stats, text = self._stats, "".join(self._text)
        whole = {
            "index": self._index,
            "content": "" if streams else text,
            "tokens": self._tokens if self._request.returns_tokens and not streams else [],
            "id_slot": self._job.slot or 0,
            "stop": True,
            "model": self._engine.model.name,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "generation_settings": generation_settings(
                self._engine, self._job.options, self._request.samplers
            ),
            "prompt": self._job.prompt_text(self._engine.tokenizer.decode),
            "has_new_line": "\n" in text,
            "truncated": self._finish is Finish.CONTEXT,
            "stop_type": _STOP_TYPES[self._finish],
            "stopping_word": "",
            "tokens_cached": stats.cached_tokens,
            "timings": timings(stats),
        }
        whole |= {} if streams else self._probabilities(self._logprobs)
        return pick(whole, self._request.fields)

    def _probabilities(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`completion_probabilities`, if `n_probs` asked for them."""
        if self._job.options.logprobs is None:
            return {}
        return {
            "completion_probabilities": [
                self._likelihood(entry.token, entry.logprob)
                | {"top_logprobs": [self._likelihood(*other) for other in entry.alternatives]}
                for entry in logprobs
            ]
        }

    def _likelihood(self, token: int, logprob: float) -> dict[str, Any]:
        spelling = self._engine.tokenizer.token_bytes.of(token)
        return {
            "id": token,
            "token": spelling.decode(errors="replace"),
            "bytes": list(spelling),
            "logprob": max(logprob, _LEAST_LOGPROB),
        }


def generation_settings(
    engine: "Engine", options: Options, samplers: Sequence[str]
) -> dict[str, Any]:
    """How an answer is made, in llama-server's words."""
    sampling = options.sampling
    return {
        "n_ctx": engine.context_limit,
        "n_predict": -1 if options.max_tokens is None else options.max_tokens,
        "seed": -1 if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": sampling.repetition_context_size,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in sampling.logit_bias],
        "stop": list(options.stop),
        "n_probs": options.logprobs or 0,
        "samplers": list(samplers),
        "speculative.n_max": 0 if not options.drafts else options.num_draft_tokens,
    }


def pick(result: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """The fields that are wanted; one with slashes comes back flat, under its whole name.

    Args:
        result: of any depth.
        fields: names such as `content` and `timings/prompt_n`; empty for everything. Those that
            do not exist are left out.
    """
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


_ABSENT: Final = object()
