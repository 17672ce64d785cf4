"""What completions and chats are asked in common, read into the engine's words.

Beside OpenAI's own fields these are taken, spelled as in the other contracts or in mlx-lm's server:
`n_predict`, of which llama.vim sends 0 to have a chat read and not answered; `top_k`, `min_p`,
`repetition_penalty`, `repetition_context_size`, and `num_draft_tokens`, where 0 turns speculation
off.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from akunu_py.options import DEFAULT_REPETITION_CONTEXT, Grammar, Options, Sampling
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.job import Job
from akunu_py.server.messages import read_content
from akunu_py.server.reading import read_bias, read_drafting, read_seed, read_stops
from akunu_py.server.settings import Defaults

_SMALLEST_TOP_P: Final = 1e-6
_MOST_TEMPERATURE: Final = 1e3
_MOST_PENALTY: Final = 2.0
_MOST_REPETITION_PENALTY: Final = 1e3
_MOST_RECENT: Final = 4096


@dataclass(frozen=True)
class AnswerRequest:
    """The answers wanted, and how they are to be sent.

    Attributes:
        jobs: one an answer, in the order of their index.
        choices: how many of them there are to each prompt.
        streams: whether chunks are wanted as they come.
        reports_usage: whether a stream ends with what it took.
    """

    jobs: tuple[Job, ...]
    choices: int
    streams: bool
    reports_usage: bool


def read_request(body: Body, jobs: Sequence[Job]) -> AnswerRequest:
    """The request for some jobs, each of them as often as choices are wanted.

    Raises:
        BodyError: if that is more than the server gives at once.
    """
    most = body.limits.choices
    choices = body.integer("n", default=1, least=1, most=most)
    if len(jobs) * choices > most:
        body.refuse("prompt", f"asks for more than {most} answers at once")
    return AnswerRequest(
        jobs=tuple(job.variant(choice) for job in jobs for choice in range(choices)),
        choices=choices,
        streams=body.flag("stream", default=False),
        reports_usage=body.object("stream_options").flag("include_usage", default=False),
    )


def read_options(
    call: Call, *, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None = None
) -> Options:
    """How to answer.

    Args:
        call: has the body.
        max_tokens: where neither the body nor the server says how many; None goes on to the
            context's end, as a number below 0 does.
        logprobs: see `Options`.
        grammar: see `Options`.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, defaults = call.body, call.settings.defaults
    usual = max_tokens if defaults.max_tokens is None else defaults.max_tokens
    wanted = body.integer("max_completion_tokens", "max_tokens", "n_predict", default=usual)
    drafter, drafts = read_drafting(body, defaults)
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=_read_sampling(body, defaults),
        stop=read_stops(body),
        drafter=drafter,
        num_draft_tokens=drafts,
        references=_read_prediction(body),
        logprobs=logprobs,
        grammar=grammar,
    )


def _read_sampling(body: Body, defaults: Defaults) -> Sampling:
    """How tokens are to be chosen: by the server's defaults, and where it has none, OpenAI's."""
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
    """`{"type": "content", "content": text or parts}`: what the answer will mostly repeat."""
    if not body.has("prediction"):
        return ()
    prediction = body.object("prediction")
    if prediction.text("type", default="content") != "content":
        prediction.refuse("type", "must be content")
    content = read_content(prediction)
    return (content,) if content else ()
