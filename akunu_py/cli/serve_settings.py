"""What `serve` was asked to do. Plain Python, as `settings.py`."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Final, Self

from akunu_py.cli.settings import ModelSettings, number, text, token_limit, whole_number
from akunu_py.drafting import DRAFTER_NAMES, MODEL_DRAFTER
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling
from akunu_py.server.settings import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    DEFAULT_QUEUE,
    Defaults,
    ServerSettings,
)

LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LARGEST_PORT: Final = 65535


@dataclass(frozen=True)
class ServeSettings:
    """A server.

    Attributes:
        model: what answers.
        server: where and to whom.
        log_level: of what standard error is told.
        prefill_step_size: prompt tokens per forward; None leaves it to the engine.
    """

    model: ModelSettings
    server: ServerSettings
    log_level: str = "INFO"
    prefill_step_size: int | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        _add_server_options(parser)
        ModelSettings.add_options(parser)
        _add_defaults(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        if not 0 <= words.port <= _LARGEST_PORT:
            raise InvalidRequestError(
                f"--port must be from 0 to {_LARGEST_PORT}, not {words.port}."
            )
        if words.queue < 1:
            raise InvalidRequestError(f"--queue must be 1 or more, not {words.queue}.")
        if words.prefill_step_size is not None and words.prefill_step_size < 1:
            raise InvalidRequestError(
                f"--prefill-step-size must be 1 or more, not {words.prefill_step_size}."
            )
        if words.api_key == "":
            raise InvalidRequestError("--api-key must not be empty.")
        server = ServerSettings(
            host=words.host,
            port=words.port,
            api_key=words.api_key,
            origins=tuple(words.cors),
            hosts=tuple(words.allow_host),
            queue=words.queue,
            defaults=_defaults(words),
            log_prompts=words.log_prompts,
        )
        model = ModelSettings.from_words(words)
        return cls(model, server, words.log_level, words.prefill_step_size)


def _add_server_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", metavar="HOST", type=text, default=DEFAULT_HOST,
        help=f"the address to listen at (default: {DEFAULT_HOST}, this machine alone)",
    )  # fmt: skip
    group.add_argument(
        "--port", metavar="N", type=whole_number, default=DEFAULT_PORT,
        help=f"the port; 0 takes a free one (default: {DEFAULT_PORT})",
    )  # fmt: skip
    group.add_argument(
        "--api-key", metavar="KEY", type=text, help="what clients must send as a Bearer token"
    )
    group.add_argument(
        "--cors", metavar="ORIGIN", type=text, action="append", default=[],
        help="let web pages of this origin use the server; may be given several times",
    )  # fmt: skip
    group.add_argument(
        "--allow-host", metavar="NAME", type=text, action="append", default=[],
        help="a further name that clients reach this server by; may be given several times",
    )  # fmt: skip
    group.add_argument(
        "--queue", metavar="N", type=whole_number, default=DEFAULT_QUEUE,
        help=f"requests that may wait for their turn (default: {DEFAULT_QUEUE})",
    )  # fmt: skip
    group.add_argument(
        "--prefill-step-size", metavar="N", type=whole_number,
        help="prompt tokens per forward; a request that is given up ends with the one under way",
    )  # fmt: skip
    group.add_argument(
        "--log-level", metavar="LEVEL", type=str.upper, choices=LOG_LEVELS, default="INFO",
        help="how much to log: DEBUG, INFO, WARNING, ERROR or CRITICAL (default: INFO)",
    )  # fmt: skip
    group.add_argument("--log-prompts", action="store_true", help="let the log have prompts in it")


def _add_defaults(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("where a request leaves it open")
    group.add_argument(
        "--max-tokens", "-m", metavar="N", type=whole_number,
        help="tokens to generate at most; -1 sets no limit (default: as each API has it)",
    )  # fmt: skip
    for name, kind, meaning in (
        ("--temp", number, "temperature"),
        ("--top-p", number, "sample from the likeliest tokens that make up P"),
        ("--top-k", whole_number, "sample from the K likeliest tokens"),
        ("--min-p", number, "sample from tokens at least P times as likely as the likeliest"),
    ):
        group.add_argument(
            name,
            metavar=name[-1].upper(),
            type=kind,
            help=f"{meaning} (default: as each API has it)",
        )
    group.add_argument(
        "--drafter", metavar="NAME", choices=(*DRAFTER_NAMES, MODEL_DRAFTER),
        help=f"who drafts: {', '.join(DRAFTER_NAMES)} (default: auto)",
    )  # fmt: skip
    group.add_argument(
        "--num-draft-tokens", metavar="N", type=whole_number,
        help="drafts a forward verifies (default: as many as pay on this machine)",
    )  # fmt: skip
    group.add_argument(
        "--no-speculate", action="store_const", const="none", dest="drafter",
        help="decode plainly, as --drafter none does",
    )  # fmt: skip


def _defaults(words: Namespace) -> Defaults:
    """What requests leave open; checked as a request's own words are."""
    if words.drafter == MODEL_DRAFTER and words.draft_model is None:
        raise InvalidRequestError("--drafter model needs --draft-model NAME.")
    defaults = Defaults(
        max_tokens=words.max_tokens,
        temperature=words.temp,
        top_p=words.top_p,
        top_k=words.top_k,
        min_p=words.min_p,
        drafter=words.drafter or (MODEL_DRAFTER if words.draft_model else "auto"),
        num_draft_tokens=words.num_draft_tokens,
    )
    given = {
        name: value
        for name in ("temperature", "top_p", "top_k", "min_p")
        if (value := getattr(defaults, name)) is not None
    }
    Options(
        max_tokens=None if words.max_tokens is None else token_limit(words.max_tokens),
        sampling=Sampling(**given),
        num_draft_tokens=words.num_draft_tokens,
    )
    return defaults
