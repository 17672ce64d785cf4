"""What a llama-server client asks for, read into the engine's words."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from akunu_py.options import MOST_ALTERNATIVES, Options
from akunu_py.server.body import Body
from akunu_py.server.contract import Call
from akunu_py.server.contracts.llama.grammar import read_grammar
from akunu_py.server.contracts.llama.sampling import read_samplers, read_sampling
from akunu_py.server.job import Job
from akunu_py.server.reading import read_drafting, read_stops
from akunu_py.text.fim import FillRequest, RepositoryFile

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_NO_SLOT: Final = -1
_MOST_FILES: Final = 1024


@dataclass(frozen=True)
class CompletionRequest:
    """One request of the native contract.

    Attributes:
        jobs: the answers wanted, in the order of their index.
        samplers: the names of those that apply.
        streams: whether events are wanted as they come.
        returns_tokens: whether a whole answer comes with its ids.
        times_tokens: whether every streamed event has timings.
        fields: the response's fields that are wanted, spelled with slashes; empty for all.
    """

    jobs: tuple[Job, ...]
    samplers: tuple[str, ...]
    streams: bool
    returns_tokens: bool
    times_tokens: bool
    fields: tuple[str, ...]


def read_completion(call: Call) -> CompletionRequest:
    """Reads a body of `/completion`.

    Raises:
        BodyError: if it has a field that cannot be served.
    """
    options = read_options(call)
    prompts = _read_prompts(call.body, call.service.engine)
    predict_s, slot = _read_predict_s(call.body), _read_slot(call.body)
    jobs = [Job(prompt, options, predict_s=predict_s, slot=slot) for prompt in prompts]
    return _request(call.body, jobs)


def read_infill(call: Call) -> CompletionRequest:
    """Reads a body of `/infill`.

    Raises:
        BodyError: if it has a field that cannot be served.
    """
    body = call.body
    for name in ("input_prefix", "input_suffix"):
        if not body.has(name):
            body.refuse(name, "is missing")
    files = _read_files(body)
    gap = FillRequest(
        body.text("input_prefix", default="") + body.text("prompt", default=""),
        body.text("input_suffix", default=""),
        files,
    )
    # Files that the prompt has no room for may be drafted from all the same.
    options = replace(read_options(call), references=tuple(file.text for file in files))
    job = Job(gap, options, predict_s=_read_predict_s(body), slot=_read_slot(body))
    return _request(body, [job])


def _read_files(body: Body) -> tuple[RepositoryFile, ...]:
    """`input_extra`: pieces of other files, the latest last."""
    return tuple(
        RepositoryFile(extra.text("filename", default=""), extra.text("text", default=""))
        for extra in body.objects("input_extra", most=_MOST_FILES)
    )


def _request(body: Body, jobs: list[Job]) -> CompletionRequest:
    """The request for some jobs, each of them as often as choices are wanted."""
    most = body.limits.choices
    choices = body.integer("n_cmpl", "n", default=1, least=1, most=most)
    if len(jobs) * choices > most:
        body.refuse("prompt", f"asks for more than {most} answers at once")
    return CompletionRequest(
        jobs=tuple(job.variant(choice) for job in jobs for choice in range(choices)),
        samplers=read_samplers(body),
        streams=body.flag("stream", default=False),
        returns_tokens=body.flag("return_tokens", default=False),
        times_tokens=body.flag("timings_per_token", default=False),
        fields=body.texts("response_fields"),
    )


def read_options(call: Call) -> Options:
    """How to answer; `n_predict` of -1, or none, goes on to the context's end.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, defaults = call.body, call.settings.defaults
    wanted = body.integer("n_predict", "max_tokens", default=defaults.max_tokens)
    drafter, drafts = read_drafting(body, defaults)
    alternatives = body.integer("n_probs", default=0, least=0, most=MOST_ALTERNATIVES)
    if alternatives and body.flag("post_sampling_probs", default=False):
        body.refuse("post_sampling_probs", "is not served; probabilities are the model's own")
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=read_sampling(body, defaults, call.service.engine.tokenizer.end_tokens),
        stop=read_stops(body),
        drafter=drafter,
        num_draft_tokens=drafts,
        logprobs=alternatives or None,
        grammar=read_grammar(body),
    )


def _read_prompts(body: Body, engine: "Engine") -> list[str | list[int]]:
    """The prompts: one, or several where `prompt` is a list of texts or of lists."""
    given = body.any("prompt")
    if given is None:
        body.refuse("prompt", "is missing")
    if isinstance(given, list) and given and not any(isinstance(part, int) for part in given):
        return [_prompt(body, f"prompt[{i}]", part, engine) for i, part in enumerate(given)]
    return [_prompt(body, "prompt", given, engine)]


def _prompt(body: Body, name: str, given: Any, engine: "Engine") -> str | list[int]:
    """A text, a list of ids, or a list that mixes ids and texts."""
    most = body.limits.prompt_characters
    if isinstance(given, str):
        if len(given) > most:
            body.refuse(name, f"is longer than {most} characters")
        return given
    if not isinstance(given, list):
        body.refuse(name, "must be a string, or a list of token ids and strings")
    if sum(len(part) for part in given if isinstance(part, str)) > most:
        body.refuse(name, f"is longer than {most} characters")
    tokens: list[int] = []
    for index, part in enumerate(given):
        if isinstance(part, str):
            tokens += engine.tokenizer.encode(
                part, special_tokens=index == 0, most=engine.context_limit
            )
        elif isinstance(part, int) and not isinstance(part, bool):
            tokens.append(part)
        else:
            body.refuse(f"{name}[{index}]", "must be a token id or a string")
    return tokens


def _read_slot(body: Body) -> int | None:
    """`id_slot`, of which -1 names none."""
    slot = body.integer("id_slot", default=_NO_SLOT, least=_NO_SLOT)
    return None if slot == _NO_SLOT else slot


def _read_predict_s(body: Body) -> float | None:
    """`t_max_predict_ms`, of which 0 or less sets no limit."""
    milliseconds = body.number("t_max_predict_ms", default=0.0)
    return milliseconds / 1000 if milliseconds > 0 else None
