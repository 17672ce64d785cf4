"""How llama-server's clients ask for tokens to be chosen.

Fields that are missing have llama.cpp's defaults: temperature 0.8, top-k 40, top-p 0.95, min-p
0.05. Where `samplers` is there, a filter that it does not name is not applied, and without
`temperature` in it, tokens are drawn at a temperature of 1.
"""

from typing import Final, TypeVar

from akunu_py.options import Sampling
from akunu_py.server.body import Body
from akunu_py.server.reading import read_bias, read_seed
from akunu_py.server.settings import Defaults

N = TypeVar("N", int, float)

SAMPLERS: Final = ("penalties", "top_k", "top_p", "min_p", "temperature", "infill")
"""Those that this server has; others are left out, as llama-server leaves out unknown ones."""

DEFAULT_SAMPLERS: Final = SAMPLERS[:-1]

_LETTERS: Final = {"e": "penalties", "k": "top_k", "p": "top_p", "m": "min_p", "t": "temperature",
                   "i": "infill"}  # fmt: skip
_SMALLEST_TOP_P: Final = 1e-6
_MOST_TEMPERATURE: Final = 1e3
_MOST_PENALTY: Final = 1e3
_RECENT: Final = 64
_MOST_RECENT: Final = 4096


def read_samplers(body: Body) -> tuple[str, ...]:
    """The samplers that apply: a list of names, or a string of llama.cpp's letters."""
    if not body.has("samplers"):
        return DEFAULT_SAMPLERS
    if isinstance(body.any("samplers"), str):
        letters = body.text("samplers", default="")
        return tuple(_LETTERS[letter] for letter in letters if letter in _LETTERS)
    return tuple(name for name in body.texts("samplers") if name in SAMPLERS)


def read_sampling(body: Body, defaults: Defaults, ignored: frozenset[int]) -> Sampling:
    """How tokens are to be chosen.

    Args:
        body: the request.
        defaults: of the server, which come before llama.cpp's.
        ignored: the end tokens, for `ignore_eos`.
    """
    samplers = read_samplers(body)
    temperature = body.number(
        "temperature", "temp", default=_either(defaults.temperature, 0.8), most=_MOST_TEMPERATURE
    )
    top_k = body.integer("top_k", default=_either(defaults.top_k, 40))
    top_p = body.number("top_p", default=_either(defaults.top_p, 0.95), most=1)
    min_p = body.number("min_p", default=_either(defaults.min_p, 0.05), most=1)
    penalty = body.number("repeat_penalty", default=1.0, most=_MOST_PENALTY)
    recent = body.integer("repeat_last_n", default=_RECENT, most=_MOST_RECENT)
    recent = _MOST_RECENT if recent < 0 else recent
    penalizes = "penalties" in samplers and recent > 0
    bias = read_bias(body)
    if body.flag("ignore_eos", default=False):
        bias = (*bias, *((token, -1e9) for token in sorted(ignored)))
    return Sampling(
        temperature=max(temperature, 0.0) if "temperature" in samplers else 1.0,
        top_p=max(top_p, _SMALLEST_TOP_P) if "top_p" in samplers else 1.0,
        top_k=max(top_k, 0) if "top_k" in samplers else 0,
        min_p=max(min_p, 0.0) if "min_p" in samplers else 0.0,
        infill="infill" in samplers,
        seed=read_seed(body),
        repetition_penalty=penalty if penalizes and penalty > 0 else 1.0,
        repetition_context_size=recent if penalizes else _RECENT,
        logit_bias=bias,
        presence_penalty=_penalty(body, "presence_penalty") if penalizes else 0.0,
        frequency_penalty=_penalty(body, "frequency_penalty") if penalizes else 0.0,
    )


def _penalty(body: Body, name: str) -> float:
    return body.number(name, default=0.0, least=-_MOST_PENALTY, most=_MOST_PENALTY)


def _either(given: N | None, usual: N) -> N:
    return usual if given is None else given
