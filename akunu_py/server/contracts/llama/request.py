"""What a llama-server client asks for, read into the engine's words."""

from dataclasses import dataclass, replace
from typing import Any, Final

from akunu_py.options import Options
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.sampling import read_sampling
from akunu_py.server.job import Job
from akunu_py.server.reading import read_drafting, read_stops
from akunu_py.text.tokenizer import Tokenizer

_ANY_SLOT: Final = -1


@dataclass(frozen=True)
class CompletionRequest:
    """One request of the native contract.

    Attributes:
        jobs: the answers wanted, in the order of their index.
        streams: whether events are wanted as they come.
        returns_tokens: whether a whole answer comes with its ids.
        times_tokens: whether every streamed event has timings.
        fields: the response's fields that are wanted, spelled with slashes; empty for all.
    """

    jobs: tuple[Job, ...]
    streams: bool
    returns_tokens: bool
    times_tokens: bool
    fields: tuple[str, ...]


def read_completion(call: Call) -> CompletionRequest:
    """Reads a body of `/completion`.

    Raises:
        BodyError: if it has a field that cannot be served.
    """
    body, tokenizer = call.body, call.service.engine.tokenizer
    options = read_options(call)
    prompts = read_prompts(body, tokenizer)
    choices = body.integer("n_cmpl", "n", default=1, least=1, most=body.limits.choices)
    if len(prompts) * choices > body.limits.choices:
        body.refuse("prompt", f"asks for more than {body.limits.choices} answers at once")
    jobs = [
        Job(
            prompt,
            _nth(options, choice),
            slot=_slot(body),
            predict_s=_predict_s(body),
        )
        for prompt in prompts
        for choice in range(choices)
    ]
    return request_for(body, jobs)


def request_for(body: Body, jobs: list[Job]) -> CompletionRequest:
    """The request for some jobs, with what its body says about the response."""
    return CompletionRequest(
        jobs=tuple(jobs),
        streams=body.flag("stream", default=False),
        returns_tokens=body.flag("return_tokens", default=False),
        times_tokens=body.flag("timings_per_token", default=False),
        fields=body.texts("response_fields"),
    )


def read_options(call: Call) -> Options:
    """How to answer; `n_predict` of -1, or none, goes on to the context's end."""
    body, defaults = call.body, call.settings.defaults
    wanted = body.integer("n_predict", "max_tokens", default=defaults.max_tokens)
    drafter, drafts = read_drafting(body, defaults)
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=read_sampling(body, defaults, call.service.engine.tokenizer.end_tokens),
        stop=read_stops(body),
        drafter=drafter,
        num_draft_tokens=drafts,
    )


def read_prompts(body: Body, tokenizer: Tokenizer) -> list[str | list[int]]:
    """The prompts: one, or several where `prompt` is a list of texts or of lists."""
    given = body.any("prompt")
    if given is None:
        body.refuse("prompt", "is missing")
    if isinstance(given, list) and given and not any(isinstance(part, int) for part in given):
        return [_prompt(body, f"prompt[{i}]", part, tokenizer) for i, part in enumerate(given)]
    return [_prompt(body, "prompt", given, tokenizer)]


def _prompt(body: Body, name: str, given: Any, tokenizer: Tokenizer) -> str | list[int]:
    """A text, a list of ids, or a list that mixes ids and texts."""
    if isinstance(given, str):
        if len(given) > body.limits.prompt_characters:
            body.refuse(name, f"is longer than {body.limits.prompt_characters} characters")
        return given
    if not isinstance(given, list):
        body.refuse(name, "must be a string, or a list of token ids and strings")
    tokens: list[int] = []
    for index, part in enumerate(given):
        if isinstance(part, str) and len(part) <= body.limits.prompt_characters:
            tokens += tokenizer.encode(part, special_tokens=index == 0)
        elif isinstance(part, int) and not isinstance(part, bool):
            tokens.append(part)
        else:
            body.refuse(f"{name}[{index}]", "must be a token id or a string")
    return tokens


def _nth(options: Options, choice: int) -> Options:
    """The options of one of several answers: a seed repeats them all, but not each other."""
    seed = options.sampling.seed
    if seed is None or not choice:
        return options
    return replace(options, sampling=replace(options.sampling, seed=seed + choice))


def _slot(body: Body) -> int | None:
    slot = body.integer("id_slot", default=_ANY_SLOT, least=_ANY_SLOT)
    return None if slot == _ANY_SLOT else slot


def _predict_s(body: Body) -> float | None:
    """`t_max_predict_ms`, of which 0 or less sets no limit."""
    milliseconds = body.number("t_max_predict_ms", default=0.0)
    return milliseconds / 1000 if milliseconds > 0 else None
