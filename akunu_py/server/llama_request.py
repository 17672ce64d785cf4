"""The requests of llama-server's clients, read into jobs.

Missing sampling fields have llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95 and min-p
0.05. If `samplers` is there, only the filters that it names apply; if it does not name
`temperature`, tokens are sampled at a temperature of 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from akunu_py.options import (
    DEFAULT_XTC_THRESHOLD,
    MAX_ALTERNATIVES,
    MAX_XTC_THRESHOLD,
    Options,
    Sampling,
)
from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.fields import (
    MAX_RECENT,
    MAX_TEMPERATURE,
    MIN_TOP_P,
    read_biases,
    read_choices,
    read_grammar,
    read_num_draft_tokens,
    read_penalty,
    read_priority,
    read_seed,
    read_stops,
    refuse_unserved,
)
from akunu_py.server.job import Job
from akunu_py.server.settings import Defaults
from akunu_py.text.fim import FillRequest, RepositoryFile

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.prompt import PromptInput
    from akunu_py.text.tokenizer import Tokenizer

N = TypeVar("N", int, float)

SAMPLERS: Final = ("penalties", "top_k", "top_p", "min_p", "xtc", "temperature", "infill")
"""The samplers of this server; unknown names are ignored, as llama-server does."""
DEFAULT_SAMPLERS: Final = SAMPLERS[:-1]

_LETTERS: Final = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "x": "xtc",
                   "t": "temperature", "i": "infill"}  # fmt: skip
_MAX_PENALTY: Final = 1e3
_RECENT: Final = 64
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
    options = read_options(request)
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
    options = replace(read_options(request), references=tuple(file.text for file in files))
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
        samplers=_read_samplers(body),
        streams=body.flag("stream", default=False),
        returns_tokens=body.flag("return_tokens", default=False),
        times_tokens=body.flag("timings_per_token", default=False),
        fields=body.texts("response_fields"),
    )


def read_options(request: ApiRequest) -> Options:
    """How to complete; an `n_predict` of -1, or none, continues to the end of the context.

    Raises:
        BodyError: if a field cannot be served.
    """
    body, defaults = request.body, request.settings.defaults
    wanted = body.integer("n_predict", "max_tokens", default=defaults.max_tokens)
    alternatives = body.integer("n_probs", default=0, least=0, most=MAX_ALTERNATIVES)
    if alternatives and body.flag("post_sampling_probs", default=False):
        body.refuse("post_sampling_probs", "is not served; probabilities are the model's own")
    return Options(
        max_tokens=None if wanted is None or wanted < 0 else wanted,
        sampling=read_sampling(body, defaults, request.engine.tokenizer),
        stop=read_stops(body),
        drafter=defaults.drafter,
        num_draft_tokens=read_num_draft_tokens(body, defaults),
        exact=defaults.exact,
        logprobs=alternatives or None,
        grammar=read_grammar(body, request.engine.tokenizer),
        priority=read_priority(body),
    )


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


def _read_samplers(body: Body) -> tuple[str, ...]:
    """The samplers that apply: a list of names, or a string of llama.cpp's letters."""
    if not body.has("samplers"):
        return DEFAULT_SAMPLERS
    if isinstance(body.any("samplers"), str):
        letters = body.text("samplers", default="")
        return tuple(_LETTERS[letter] for letter in letters if letter in _LETTERS)
    return tuple(name for name in body.texts("samplers") if name in SAMPLERS)


def read_sampling(body: Body, defaults: Defaults, tokenizer: "Tokenizer") -> Sampling:
    """How to sample tokens; the server's defaults come before llama.cpp's, and `ignore_eos`
    forbids the tokens that end an answer."""
    refuse_unserved(body)
    samplers = _read_samplers(body)
    temperature = body.number(
        "temperature", "temp", default=_either(defaults.temperature, 0.8), most=MAX_TEMPERATURE
    )
    top_k = body.integer("top_k", default=_either(defaults.top_k, 40))
    top_p = body.number("top_p", default=_either(defaults.top_p, 0.95), most=1)
    min_p = body.number("min_p", default=_either(defaults.min_p, 0.05), most=1)
    xtc_probability = body.number(
        "xtc_probability", default=defaults.xtc_probability or 0.0, most=1
    )
    usual = _either(defaults.xtc_threshold, DEFAULT_XTC_THRESHOLD)
    xtc_threshold = body.number("xtc_threshold", default=usual, least=0)
    excludes = "xtc" in samplers and xtc_threshold <= MAX_XTC_THRESHOLD  # as llama-server
    penalty = body.number("repeat_penalty", default=1.0, most=_MAX_PENALTY)
    recent = body.integer("repeat_last_n", default=_RECENT, most=MAX_RECENT)
    recent = MAX_RECENT if recent < 0 else recent
    penalizes = "penalties" in samplers and recent > 0
    return Sampling(
        temperature=max(temperature, 0.0) if "temperature" in samplers else 1.0,
        top_p=max(top_p, MIN_TOP_P) if "top_p" in samplers else 1.0,
        top_k=max(top_k, 0) if "top_k" in samplers else 0,
        min_p=max(min_p, 0.0) if "min_p" in samplers else 0.0,
        xtc_probability=max(xtc_probability, 0.0) if excludes else 0.0,
        xtc_threshold=min(xtc_threshold, MAX_XTC_THRESHOLD),
        infill="infill" in samplers,
        seed=read_seed(body, defaults),
        repetition_penalty=penalty if penalizes and penalty > 0 else 1.0,
        repetition_context_size=recent if penalizes else _RECENT,
        logit_bias=read_biases(body, tokenizer),
        presence_penalty=read_penalty(body, "presence_penalty", _MAX_PENALTY) if penalizes else 0.0,
        frequency_penalty=read_penalty(body, "frequency_penalty", _MAX_PENALTY)
        if penalizes
        else 0.0,
    )


def _either(given: N | None, usual: N) -> N:
    return usual if given is None else given
