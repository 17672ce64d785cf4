"""Dialect: the options of a request in the form of one API.

All APIs share the fields, each under the names that OpenAI, llama-server, Ollama, vLLM and mlx-lm's
server have for it. With `samplers`, only the filters that it lists apply; if `temperature` is not
listed, tokens are sampled at a temperature of 1.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

from akunu_py.memory.projects import Memory
from akunu_py.option_field import options_in
from akunu_py.options import (
    DEFAULT_REPETITION_CONTEXT,
    DEFAULT_XTC_THRESHOLD,
    MAX_DRAFT_TOKENS,
    MAX_XTC_THRESHOLD,
    Grammar,
    Options,
    Sampling,
)
from akunu_py.server.body import MAX_PATH, Body
from akunu_py.server.errors import ApiError
from akunu_py.server.grammars import read_grammar
from akunu_py.server.service import Job, Service
from akunu_py.text.fim import fill_end_tokens

N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Dialect:
    """What is special in an API.

    `limits` are the names of the field for the most tokens to generate; a number below
    `least_limit` sets no limit. The last `recent` tokens are penalized for repetition. If it
    `clamps`, a number below its range counts as the lowest one; otherwise it is refused.
    """

    limits: tuple[str, ...]
    least_limit: int = 0
    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    recent: int = 64
    most_penalty: float | None = None
    clamps: bool = True


OPENAI: Final = Dialect(
    ("max_completion_tokens", "max_tokens", "n_predict"),
    recent=DEFAULT_REPETITION_CONTEXT,
    most_penalty=2.0,
    clamps=False,
)
LLAMA: Final = Dialect(
    ("n_predict", "max_tokens"), temperature=0.8, top_k=40, top_p=0.95, min_p=0.05
)
OLLAMA: Final = Dialect(("num_predict",), least_limit=1, temperature=0.8, top_k=40, top_p=0.9)
"""Ollama's, except for `repeat_penalty`, which is 1, because code repeats itself on purpose."""

SAMPLERS: Final = ("penalties", "top_k", "top_p", "min_p", "xtc", "temperature", "infill")
"""The samplers of this server; unknown names are ignored, as in llama-server."""
DEFAULT_SAMPLERS: Final = SAMPLERS[:-1]
FORBIDDEN: Final = -1e9
"""The logit bias that forbids a token: far below every logit, but finite."""

_SAMPLING: Final = options_in(Sampling)
_LETTERS: Final = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "x": "xtc",
                   "t": "temperature", "i": "infill"}  # fmt: skip
_LLAMA_RANDOM_SEED: Final = (1 << 32) - 1
_SEEDS: Final = 1 << 64
_MAX_TOP_LOGPROBS: Final = 20
_MAX_CHOICES: Final = 16
_MAX_ECHO: Final = 4 << 20
"""The most characters of all prompts that an answer repeats: as many as a body may have."""
_MAX_SAMPLERS: Final = 64
_MAX_STOPS: Final = 64
_MAX_STOP_LENGTH: Final = 512
_MAX_EFFORT: Final = 16
_MAX_BIASES: Final = 1024
_MAX_BIASED: Final = 4096
"""The most characters of all texts with a bias, and of the tokens that they stand for."""
_MAX_PARTS: Final = 1024
"""The most texts in a prompt that mixes texts and ids: each is encoded on its own."""
_MIN_TOP_P: Final = 1e-6
_MAX_RECENT: Final = 4096
_UNSERVED: Final[Mapping[str, tuple[Any, ...]]] = {
    "mirostat": (0,), "dry_multiplier": (0,), "typical_p": (1,), "typ_p": (1,), "tfs_z": (1,),
    "dynatemp_range": (0,), "top_n_sigma": (0, -1), "adaptive_target": (-1,), "min_tokens": (0,),
    "stop_token_ids": ([],), "bad_words": ([],), "allowed_token_ids": ([],),
    "use_beam_search": (False,), "include_stop_str_in_output": (False,),
    "truncate_prompt_tokens": (), "prompt_logprobs": (), "prompt_embeds": (), "lora": ([],),
    "image_data": ([],), "multimodal_data": ([],), "grammar_lazy": (False,),
    "modalities": (["text"],), "audio": (), "mcp_servers": ([],), "container": (),
    "web_search_options": (), "reasoning_format": ("auto", "deepseek"),
}  # fmt: skip
"""Fields of llama-server, Ollama, vLLM and the services, with the values that turn them off."""


def read_options(
    service: Service,
    whole: Body,
    dialect: Dialect,
    *,
    part: Body | None = None,
    stops: str = "stop",
    logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> Options:
    """Reads the options of a request: the `part` of the body that has them, or the whole body.

    `stops` is the name of the stop strings; the `grammar` comes from a field that only this API
    has. The server's defaults replace the dialect's.
    """
    body, defaults = part or whole, service.defaults
    tokenizer = service.engine.tokenizer
    usual = dialect.max_tokens if defaults.max_tokens is None else defaults.max_tokens
    wanted = body.integer(*dialect.limits, default=usual)
    constrained = read_grammar(body, tokenizer)
    if grammar is not None and constrained is not None:
        body.refuse("response_format", "cannot be combined with another grammar")
    return Options(
        max_tokens=None if wanted is None or wanted < dialect.least_limit else wanted,
        stop=_read_stops(body, stops),
        drafter=defaults.drafter,
        num_draft_tokens=_read_num_draft_tokens(body, defaults.num_draft_tokens),
        exact=defaults.exact,
        references=_read_prediction(body),
        logprobs=logprobs,
        drawn_logprobs=body.flag("post_sampling_probs", default=False),
        reports_progress=body.flag("return_progress", default=False)
        and body.flag("stream", default=False),
        grammar=grammar or constrained,
        priority=body.integer("priority", default=0),  # vLLM's: lower numbers go first
        project=_read_project(whole, service.engine.memory),
        **_read_sampling(service, body, dialect),
    )


def read_prompts(
    service: Service, body: Body, name: str = "prompt", most: int = _MAX_CHOICES
) -> list[str | list[int]]:
    """The prompts: one, or several if the field is a list of texts or of lists."""
    body.require(name)
    given = body.any(name)
    if isinstance(given, list) and given and not any(isinstance(part, int) for part in given):
        given = body.values(name, most=most)
        return [_prompt(service, body, f"{name}[{i}]", part) for i, part in enumerate(given)]
    return [_prompt(service, body, name, given)]


def _prompt(service: Service, body: Body, name: str, given: Any) -> str | list[int]:
    """A text, an object with one, a list of ids, or a list that mixes ids and texts."""
    if isinstance(given, dict):
        if given.get("multimodal_data"):
            body.refuse(f"{name}.multimodal_data", "is not supported; this model reads only text")
        given = given.get("prompt_string")
    parts = [given] if isinstance(given, str) else given
    if not isinstance(parts, list):
        body.refuse(name, "must be a string, or a list of token ids and strings")
    if sum(isinstance(part, str) for part in parts) > _MAX_PARTS:
        body.refuse(name, f"must have {_MAX_PARTS} strings or fewer; join them")
    if isinstance(given, str):
        return given
    engine, tokens = service.engine, list[int]()
    for index, part in enumerate(parts):
        if isinstance(part, str):
            opens = index == 0
            tokens += engine.tokenizer.encode(part, special_tokens=opens, most=engine.context_limit)
        elif type(part) is int and 0 <= part < engine.model.vocabulary_size:
            tokens.append(part)
        else:
            body.refuse(f"{name}[{index}]", "must be an id of the model's vocabulary or a string")
    return tokens


def read_choices(body: Body, jobs: Sequence[Job], *names: str) -> tuple[int, tuple[Job, ...]]:
    """How many choices each prompt has, and the jobs, repeated for every choice."""
    choices = body.integer(*names, default=1, least=1, most=_MAX_CHOICES)
    if len(jobs) * choices > _MAX_CHOICES:
        body.refuse("prompt", f"asks for more than {_MAX_CHOICES} answers in one request")
    if choices * sum(len(job.echo) for job in jobs) > _MAX_ECHO:
        why = f"is repeated in the answers, with more than {_MAX_ECHO} characters in all"
        body.refuse("prompt", f"{why}; ask for fewer answers, or for none of it")
    return choices, tuple(job.variant(choice) for job in jobs for choice in range(choices))


def read_logprobs(body: Body) -> int | None:
    """How many alternatives to report per token; None reports no log-probabilities."""
    wanted = body.flag("logprobs", default=False)
    alternatives = body.integer("top_logprobs", default=0, least=0, most=_MAX_TOP_LOGPROBS)
    if alternatives and not wanted:
        body.refuse("top_logprobs", "needs `logprobs` to be true")
    return alternatives if wanted else None


def read_samplers(body: Body) -> tuple[str, ...]:
    """The samplers that apply: a list of names, or a string of llama.cpp's letters."""
    if not body.has("samplers"):
        return DEFAULT_SAMPLERS
    if isinstance(body.any("samplers"), str):
        letters = body.text("samplers", default="", longest=_MAX_SAMPLERS)
        return tuple(_LETTERS[letter] for letter in letters if letter in _LETTERS)
    return tuple(name for name in body.texts("samplers", most=_MAX_SAMPLERS) if name in SAMPLERS)


def _read_sampling(service: Service, body: Body, dialect: Dialect) -> dict[str, Any]:
    for name, neutral in _UNSERVED.items():
        value = body.any(name)
        if value is not None and value not in neutral:
            body.refuse(name, "is not supported; leave it out")
    defaults, samplers = service.defaults, read_samplers(body)

    def number(name: str, usual: float) -> float:
        least, most = _SAMPLING[name].bounds
        default = _either(getattr(defaults, name, None), usual)
        lower = None if dialect.clamps else least
        names = _SAMPLING[name].wire_names
        return max(body.number(*names, default=default, least=lower, most=most), least)

    def penalty(name: str) -> float:
        most = dialect.most_penalty or _SAMPLING[name].bounds[1]
        found = body.number(name, default=0.0, least=-most, most=most)
        return found if penalizes else 0.0

    top_k = body.integer("top_k", default=_either(defaults.top_k, dialect.top_k))
    temperature = number("temperature", dialect.temperature)
    top_p, min_p = number("top_p", dialect.top_p), number("min_p", dialect.min_p)
    xtc_probability = number("xtc_probability", 0.0)
    threshold = _either(defaults.xtc_threshold, DEFAULT_XTC_THRESHOLD)
    xtc_threshold = body.number("xtc_threshold", default=threshold, least=0)
    excludes = "xtc" in samplers and xtc_threshold <= MAX_XTC_THRESHOLD  # as llama-server
    repetition = number("repetition_penalty", 1.0)
    recent = body.integer(
        *_SAMPLING["repetition_context_size"].wire_names, default=dialect.recent, most=_MAX_RECENT
    )
    penalizes = "penalties" in samplers and recent != 0
    return {
        "temperature": temperature if "temperature" in samplers else 1.0,
        "top_p": max(top_p, _MIN_TOP_P) if "top_p" in samplers else 1.0,
        "top_k": max(top_k, 0) if "top_k" in samplers else 0,
        "min_p": min_p if "min_p" in samplers else 0.0,
        "xtc_probability": xtc_probability if excludes else 0.0,
        "xtc_threshold": min(xtc_threshold, MAX_XTC_THRESHOLD),
        "infill": "infill" in samplers,
        "seed": _read_seed(body, defaults.seed),
        "repetition_penalty": repetition or 1.0 if penalizes else 1.0,
        "repetition_context_size": recent if recent > 0 else _MAX_RECENT,
        "logit_bias": _read_biases(service, body),
        "presence_penalty": penalty("presence_penalty"),
        "frequency_penalty": penalty("frequency_penalty"),
    }


def _either(given: N | None, usual: N) -> N:
    return usual if given is None else given


def _read_stops(body: Body, name: str) -> tuple[str, ...]:
    stops = body.texts(name, most=_MAX_STOPS, longest=_MAX_STOP_LENGTH)
    return tuple(stop for stop in stops if stop)  # some clients send empty ones


def _read_seed(body: Body, usual: int | None) -> int | None:
    """The seed; None means random, as do negative seeds and llama.cpp's largest one."""
    seed = body.integer(*_SAMPLING["seed"].wire_names, default=usual)
    return None if seed is None or seed < 0 or seed == _LLAMA_RANDOM_SEED else seed % _SEEDS


def _read_num_draft_tokens(body: Body, usual: int | None) -> int | None:
    """`num_draft_tokens`, or llama-server's `speculative.n_max`, flat or nested."""
    if isinstance(body.any("speculative"), dict):
        nested = body.object("speculative")
        usual = nested.integer("n_max", default=usual, least=0, most=MAX_DRAFT_TOKENS)
    return body.integer(
        "num_draft_tokens", "speculative.n_max", default=usual, least=0, most=MAX_DRAFT_TOKENS
    )


def _read_prediction(body: Body) -> tuple[str, ...]:
    """`{"type": "content", "content": text or parts}`: text that the completion will repeat."""
    if not body.has("prediction"):
        return ()
    prediction = body.object("prediction")
    if prediction.text("type", default="content") != "content":
        prediction.refuse("type", "must be content")
    content = prediction.joined("content", joint="")
    return (content,) if content else ()


def _read_biases(service: Service, body: Body) -> tuple[tuple[int, float], ...]:
    """Logit biases, `[[TOKEN, BIAS], ...]` or `{"TOKEN": BIAS}`: `false` forbids a token, and a
    text stands for all its tokens. `ignore_eos` forbids the tokens that end an answer."""
    name = "logit_bias"
    tokenizer = service.engine.tokenizer
    biases: list[tuple[int, float]] = []
    forbidden: list[tuple[int, float]] = []
    if body.flag("ignore_eos", default=False):
        ends = tokenizer.end_tokens | fill_end_tokens(tokenizer)
        size = service.engine.model.vocabulary_size
        forbidden = [(token, FORBIDDEN) for token in sorted(ends) if token < size]
    given = body.any(name)
    if given is None:
        return tuple(forbidden)
    if not isinstance(given, dict | list):
        body.refuse(name, "must be a list of pairs, or an object")
    if len(given) > _MAX_BIASES:
        body.refuse(name, f"must have {_MAX_BIASES} entries or fewer")
    left = _MAX_BIASED
    for entry in given.items() if isinstance(given, dict) else given:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            body.refuse(name, "must be pairs of a token id and a number")
        token, bias = entry
        if isinstance(token, str) and token.isdecimal() and len(token) < 12:
            token = int(token)
        tokens = [token]
        if isinstance(token, str) and 0 < len(token) <= min(left, _MAX_STOP_LENGTH):
            tokens = tokenizer.encode_plain(token)
            left -= max(len(token), len(tokens))
        elif isinstance(token, bool) or not isinstance(token, int) or token < 0:
            texts = f"short texts, {_MAX_BIASED} characters in all"
            body.refuse(name, f"must give tokens by id, 0 or more, or as {texts}")
        if bias is False:
            bias = FORBIDDEN
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > -FORBIDDEN:
            body.refuse(name, "must give each token a number, or false")
        biases += [(each, float(bias)) for each in tokens]
    return (*biases, *forbidden)  # of two for one token, the last one counts


def read_effort(body: Body, name: str = "effort") -> dict[str, Any]:
    """How much to reason, as a variable of chat templates; each model has its own words for it."""
    effort = body.text(name, default=None)
    if effort is None:
        return {}
    if not re.fullmatch(rf"[\w-]{{1,{_MAX_EFFORT}}}", effort):
        body.refuse(name, f"must be a word of at most {_MAX_EFFORT} characters")
    return {"reasoning_effort": effort}


def _read_project(body: Body, memory: Memory) -> str | None:
    """The only project that a request drafts from: a folder that the server was started with, or
    its last name; any other is an ApiError, whether or not it exists. None means all projects, an
    empty text none. Without the field, a file in `input_extra` stands for its project.
    """
    given = body.text("project", default=None, longest=MAX_PATH)
    if given is None:
        extras = body.objects("input_extra")
        names = [extra.text("filename", default="", longest=MAX_PATH) for extra in extras]
        paths = [Path(os.path.normpath(name)) for name in names]
        within = (key for path in paths for key in memory.projects if path.is_relative_to(key))
        return next(within, None)
    if not given or given in memory.projects:
        return given
    wanted = os.path.normpath(given)
    for key in memory.projects:
        if wanted in (key, Path(key).name):
            return key
    raise ApiError(
        HTTPStatus.FORBIDDEN,
        "The field `project` names none of the folders that this server was started with; see "
        "`serve --project`.",
        "permission_error",
        param="project",
    )
