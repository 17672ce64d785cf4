"""The requests of llama-server's clients, read into jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from akunu_py.options import MAX_ALTERNATIVES, Options
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.dialect import LLAMA, read_options, read_samplers
from akunu_py.server.fields import read_choices
from akunu_py.server.job import Job
from akunu_py.text.fim import FillRequest, RepositoryFile

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.prompt import PromptInput

_MAX_FILES: Final = 1024


@dataclass(frozen=True)
class CompletionRequest:
    """A request of `/completion` or `/infill`.

    Attributes:
        returns_tokens: whether a whole completion includes its ids.
        times_tokens: whether every streamed event includes timings.
        fields: the fields of the response that are wanted, with slashes; empty for all.
    """

    jobs: tuple[Job, ...]
    samplers: tuple[str, ...]
    streams: bool
    returns_tokens: bool
    times_tokens: bool
    fields: tuple[str, ...]


def read_completion(request: ApiRequest) -> CompletionRequest:
    """Reads a body of `/completion`.

    Raises:
        BodyError: if a field cannot be served.
    """
    options = read_completion_options(request)
    return _request(request, _read_prompts(request.body, request.engine), options)


def read_infill(request: ApiRequest) -> CompletionRequest:
    """Reads a body of `/infill`.

    Raises:
        BodyError: if a field cannot be served.
    """
    body = request.body
    body.require("input_prefix", "input_suffix")
    files = tuple(  # pieces of other files, the latest last
        _file(extra) for extra in body.objects("input_extra", most=_MAX_FILES)
    )
    gap = FillRequest(
        body.text("input_prefix", default="") + body.text("prompt", default=""),
        body.text("input_suffix", default=""),
        files,
    )
    # Drafts may be copied even from files that do not fit into the prompt.
    options = read_completion_options(request)
    references = (*options.references, *(file.text for file in files))
    options = replace(options, references=references)
    return _request(request, [gap], options)


def _file(extra: Body) -> RepositoryFile:
    extra.require("text")
    return RepositoryFile(extra.text("filename", default=""), extra.text("text", default=""))


def _request(
    request: ApiRequest, prompts: "Sequence[PromptInput]", options: Options
) -> CompletionRequest:
    """The request for some prompts, each with every choice. An `id_slot` of -1 names no slot, and
    a `t_max_predict_ms` of 0 or less sets no limit."""
    body = request.body
    slot = body.integer("id_slot", default=-1, least=-1)
    predict_ms = body.number("t_max_predict_ms", default=0.0)
    predict_s = predict_ms / 1000 if predict_ms > 0 else None
    jobs = [
        Job(prompt, options, predict_s=predict_s, slot=None if slot < 0 else slot)
        for prompt in prompts
    ]
    _, variants = read_choices(body, jobs, "n_cmpl", "n")
    return CompletionRequest(
        jobs=variants,
        samplers=read_samplers(body),
        streams=body.flag("stream", default=False),
        returns_tokens=body.flag("return_tokens", default=False),
        times_tokens=body.flag("timings_per_token", default=False),
        fields=body.texts("response_fields"),
    )


def read_completion_options(request: ApiRequest) -> Options:
    """How to complete.

    Raises:
        BodyError: if a field cannot be served.
    """
    alternatives = request.body.integer("n_probs", default=0, least=0, most=MAX_ALTERNATIVES)
    return read_options(request, LLAMA, logprobs=alternatives or None)


def _read_prompts(body: Body, engine: "Engine") -> list[str | list[int]]:
    """The prompts: one, or several if `prompt` is a list of texts or of lists."""
    body.require("prompt")
    given = body.any("prompt")
    if isinstance(given, list) and given and not any(isinstance(part, int) for part in given):
        return [_prompt(body, f"prompt[{i}]", part, engine) for i, part in enumerate(given)]
    return [_prompt(body, "prompt", given, engine)]


def _prompt(body: Body, name: str, given: Any, engine: "Engine") -> str | list[int]:
    """A text, an object with one, a list of ids, or a list that mixes ids and texts."""
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            body.refuse(f"{name}.multimodal_data", "cannot be served; this model reads only text")
        given = given.get("prompt_string")
    most = body.limits.prompt_characters
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, list):
        body.refuse(name, "must be a string, or a list of token ids and strings")
    if sum(len(part) for part in parts if isinstance(part, str)) > most:
        body.refuse(name, f"is longer than {most} characters")
    if isinstance(given, str):
        return given
    tokens: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            tokens += engine.tokenizer.encode(
                part, special_tokens=index == 0, most=engine.context_limit
            )
        elif isinstance(part, int) and not isinstance(part, bool):
            tokens.append(part)
        else:
            body.refuse(f"{name}[{index}]", "must be a token id or a string")
    return tokens
