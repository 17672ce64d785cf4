"""What the server was told when it started: frozen, and plain Python."""

from dataclasses import dataclass, field
from typing import Final

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
DEFAULT_QUEUE: Final = 32


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for, so that none of them can exhaust the machine.

    Attributes:
        body_bytes: of a request's body.
        prompt_characters: of any one text in it, a file around a gap to fill included.
        stops: how many stop strings.
        stop_characters: of one stop string.
        choices: answers to one request, whether as several prompts or as several samples.
        biases: tokens whose logits are edited.
    """

    body_bytes: int = 16 << 20
    prompt_characters: int = 4 << 20
    stops: int = 64
    stop_characters: int = 512
    choices: int = 16
    biases: int = 1024


@dataclass(frozen=True)
class Defaults:
    """What holds where a request leaves a field out; None leaves it to the contract."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    drafter: str = "auto"
    num_draft_tokens: int | None = None


@dataclass(frozen=True)
class ServerSettings:
    """How to serve.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        api_key: what clients must present; None asks for nothing.
        origins: web origins that may read answers, by CORS; none by default.
        hosts: further names by which clients reach the server.
        queue: requests that may wait while one is answered.
        limits: of a request.
        defaults: of a request.
        log_prompts: whether the log may have prompts in it.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    api_key: str | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    queue: int = DEFAULT_QUEUE
    limits: Limits = field(default_factory=Limits)
    defaults: Defaults = field(default_factory=Defaults)
    log_prompts: bool = False
