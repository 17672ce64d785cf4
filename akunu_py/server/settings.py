"""The settings that the server starts with: frozen dataclasses in plain Python."""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from akunu_py.errors import InvalidRequestError
from akunu_py.option_field import Range, borrowed, check_options, option, part
from akunu_py.option_words import (
    NO_LIMIT,
    byte_count,
    duration,
    page_origin,
    whole_number,
)
from akunu_py.options import DEFAULT_PARALLEL, MAX_PARALLEL, Options, Sampling

KEY_VARIABLE: Final = "AKUNU_API_KEY"
_MAX_PORT: Final = 65535
_API_DEFAULT: Final = "the model's, or else the API's"
RECOMMENDED: Final = ("temperature", "top_p", "top_k", "min_p")
"""The defaults that a model's `generation_config.json` may set. Not `repetition_penalty`: code and
edits repeat on purpose."""


def _filter(name: str) -> Any:
    return borrowed(Sampling, name, None, shown=_API_DEFAULT)


@dataclass(frozen=True)
class Defaults:
    """The values of fields that a request leaves out; None means the API's own default."""

    # fmt: off
    max_tokens: int | None = borrowed(Options, "max_tokens", None, within=Range(NO_LIMIT),
        read=whole_number, shown=_API_DEFAULT)
    temperature: float | None = _filter("temperature")
    top_p: float | None = _filter("top_p")
    top_k: int | None = _filter("top_k")
    min_p: float | None = _filter("min_p")
    xtc_probability: float | None = _filter("xtc_probability")
    xtc_threshold: float | None = _filter("xtc_threshold")
    seed: int | None = borrowed(Sampling, "seed", None, help="the seed of sampled answers",
        within=Range(0), shown="random")
    drafter: str = borrowed(Options, "drafter", "auto")
    num_draft_tokens: int | None = borrowed(Options, "num_draft_tokens", None)
    exact: bool | None = borrowed(Options, "exact", None)
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)

    def or_else(self, recommended: Mapping[str, Any]) -> Self:
        """These defaults, with the model's recommended values where they are None; recommended
        values out of range are ignored."""
        found: dict[str, Any] = {}
        for name in RECOMMENDED:
            value = recommended.get(name)
            if getattr(self, name) is None and value is not None:
                with suppress(InvalidRequestError, OverflowError):
                    found[name] = getattr(Defaults(**{name: value}), name)
        return replace(self, **found)


@dataclass(frozen=True)
class ServerSettings:
    """How and where to serve."""

    # fmt: off
    host: str = option("127.0.0.1", "the address to listen on, or several, separated by commas",
        metavar="HOST", shown="127.0.0.1, this machine only")
    port: int = option(8080, "the port; 0 takes a free one", within=Range(0, _MAX_PORT))
    api_key: str | None = option(None, "the key that clients must send as a Bearer token; other "
        "users of this machine see it in the process list", metavar="KEY", is_secret=True,
        shown=f"the variable {KEY_VARIABLE}, if it is set")
    api_key_file: str | None = option(None, "a file that has only the key", metavar="FILE")
    aliases: tuple[str, ...] = option((), "NAME=MODEL: another name for a model, or several, "
        "separated by commas; answers show the first one. NAME alone is for the first model; may "
        "be repeated", flag="--alias", repeated=True, shown="their own")
    models_dirs: tuple[Path, ...] = option((), "also offer the models in this folder; may be "
        "repeated", flag="--models-dir", metavar="FOLDER", repeated=True)
    keep_alive: float = option(600.0, "how long a model stays loaded after its last request: 30s, "
        "10m, 1h; 0 unloads it at once, -1 keeps it", read=duration, metavar="TIME", shown="10m")
    memory: int | None = option(None, "memory that all loaded models may take (16GB)",
        within=Range(1), read=byte_count, shown="what Metal recommends, or what is free")
    origins: tuple[str, ...] = option((), "let web pages of this origin use the server, besides "
        "those of this machine and desktop applications; may be repeated", flag="--cors",
        read=page_origin, metavar="ORIGIN", repeated=True)
    hosts: tuple[str, ...] = option((), "another host name by which clients may reach this server; "
        "may be repeated", flag="--allow-host", repeated=True)
    disabled: tuple[str, ...] = option((), "turn this off: page, slots or metrics; may be "
        "repeated", flag="--disable", metavar="NAME", choices=("page", "slots", "metrics"),
        repeated=True)
    queue: int = option(512, "how many requests may wait", within=Range(1))
    parallel: int = option(DEFAULT_PARALLEL,
        "requests answered at a time, fewer if memory is short", within=Range(1, MAX_PARALLEL))
    log_prompts: bool = option(False, "let prompts appear in the log")
    defaults: Defaults = part(Defaults, "answer, unless the request sets it")
    # fmt: on
    body_bytes: int = 8 << 20
    held_bytes: int = 256 << 20
    """The most that all request bodies may take together: half of it while they arrive."""

    def __post_init__(self) -> None:
        check_options(self)
        names = (name.strip() for word in self.aliases for name in word.split(","))
        object.__setattr__(self, "aliases", tuple(filter(None, names)))
        if self.api_key == "":
            raise InvalidRequestError("`api_key` must not be empty.")
        if self.api_key is not None and self.api_key_file is not None:
            raise InvalidRequestError("Give --api-key or --api-key-file, not both.")

    @cached_property
    def key(self) -> str | None:
        """The key of clients: given, in the file, or in the environment. Raises InvalidRequestError
        if the file cannot be read, others can write to it, or it has no key.
        """
        key = self.api_key
        if self.api_key_file is not None:
            try:
                path = Path(self.api_key_file).expanduser()
                if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) and path.is_file():
                    raise ValueError("other users can write to it")
                key = path.read_text(encoding="utf-8").strip()
            except (OSError, ValueError) as error:
                raise InvalidRequestError(
                    f"The key file {self.api_key_file} cannot be read: "
                    f"{getattr(error, 'strerror', None) or error}."
                ) from error
        elif key is None:
            key = os.environ.get(KEY_VARIABLE)
        if key is not None and len(key.splitlines()) != 1:
            raise InvalidRequestError("The server's key must be one line, and not empty.")
        return key
