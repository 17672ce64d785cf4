"""Fields that several contracts share, read into the engine's words."""

from collections.abc import Iterator
from typing import Any, Final

from akunu_py.options import MOST_DRAFT_TOKENS
from akunu_py.server.body import Body
from akunu_py.server.settings import Defaults

_SEEDS: Final = 1 << 32
_NO_BIAS: Final = -1e9
"""What forbids a token: far enough from every logit, and still a number."""


def read_stops(body: Body, name: str = "stop") -> tuple[str, ...]:
    """The stop strings; empty ones, which some clients send, stop nothing."""
    stops = body.texts(name, most=body.limits.stops)
    if any(len(stop) > body.limits.stop_characters for stop in stops):
        body.refuse(name, f"has a string of more than {body.limits.stop_characters} characters")
    return tuple(stop for stop in stops if stop)


def read_seed(body: Body) -> int | None:
    """The seed, which Mistral calls `random_seed`; negative ones and llama.cpp's largest one ask
    for a random one, as None does."""
    seed = body.integer("seed", "random_seed", default=None)
    return None if seed is None or seed < 0 or seed == _SEEDS - 1 else seed % _SEEDS


def read_drafting(body: Body, defaults: Defaults) -> tuple[str, int | None]:
    """The drafter and the most drafts a forward: `num_draft_tokens`, or llama-server's
    `speculative.n_max`, flat or nested; 0 decodes plainly."""
    number = body.integer(
        "num_draft_tokens", "speculative.n_max", default=None, least=0, most=MOST_DRAFT_TOKENS
    )
    if number is None and isinstance(body.any("speculative"), dict):
        nested = body.object("speculative")
        number = nested.integer("n_max", default=None, least=0, most=MOST_DRAFT_TOKENS)
    return defaults.drafter, defaults.num_draft_tokens if number is None else number


def read_bias(body: Body, name: str = "logit_bias") -> tuple[tuple[int, float], ...]:
    """Logit biases by token id: `[[ID, BIAS], ...]` or `{"ID": BIAS}`; `false` forbids a token."""
    given = body.any(name)
    if given is None:
        return ()
    if not isinstance(given, dict | list):
        body.refuse(name, "must be a list of pairs, or an object")
    if len(given) > body.limits.biases:
        body.refuse(name, f"must have {body.limits.biases} entries or fewer")
    return tuple(_biases(body, name, given))


def _biases(
    body: Body, name: str, given: dict[str, Any] | list[Any]
) -> Iterator[tuple[int, float]]:
    for entry in given.items() if isinstance(given, dict) else given:
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            body.refuse(name, "must be pairs of a token id and a number")
        token, bias = entry
        if isinstance(token, str) and token.isdecimal() and len(token) < 12:
            token = int(token)
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            body.refuse(name, "must name tokens by their ids, 0 or more")
        if bias is False:
            bias = _NO_BIAS
        if isinstance(bias, bool) or not isinstance(bias, int | float) or abs(bias) > -_NO_BIAS:
            body.refuse(name, "must give each token a number, or false")
        yield token, float(bias)
