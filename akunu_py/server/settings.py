"""The settings that the server starts with: frozen, and plain Python."""

from dataclasses import dataclass, field
from typing import Final

from akunu_py.scheduler import DEFAULT_PARALLEL

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
DEFAULT_QUEUE: Final = 512
"""As in Ollama. A connection has one request at a time, so the order of arrival is fair to all."""


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for, so that no request can exhaust the machine.

    Attributes:
        body_bytes: the size of a request's body.
        held_bytes: the size of the bodies of all requests that wait or run.
        values: numbers, texts and other values in a body, since JSON is parsed in one go, during
            which nothing else runs.
        tokenized_characters: the length of a text whose tokens are asked for.
        prompt_characters: the length of any one text in the body, including files around a gap.
        stops: number of stop strings.
        stop_characters: the length of one stop string.
        choices: completions for one request, counted over all prompts and samples.
        biases: tokens with a logit bias.
    """

    body_bytes: int = 16 << 20
    held_bytes: int = 256 << 20
    values: int = 1 << 18
    tokenized_characters: int = 1 << 20
    prompt_characters: int = 4 << 20
    stops: int = 64
    stop_characters: int = 512
    choices: int = 16
    biases: int = 1024


@dataclass(frozen=True)
class Defaults:
    """The values of fields that a request leaves out; None means the contract's own default."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    seed: int | None = None
    drafter: str = "auto"
    num_draft_tokens: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class ServerSettings:
    """How to serve.

    Attributes:
        host, port: where to listen, several hosts with commas between; port 0 takes a free one.
        api_key: the key that clients must send; None requires none.
        origins: web origins that may read responses, by CORS.
        hosts: further names by which clients reach the server.
        aliases: the names of the model for clients, the first one in answers; none for its own.
        disabled: which of `page`, `slots` and `metrics` there are not.
        queue: how many requests may wait.
        parallel: how many are answered at a time.
        log_prompts: whether the log may contain prompts.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_key: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    disabled: tuple[str, ...] = ()
    queue: int = DEFAULT_QUEUE
    parallel: int = DEFAULT_PARALLEL
    limits: Limits = field(default_factory=Limits)
    defaults: Defaults = field(default_factory=Defaults)
    log_prompts: bool = False
