"""What each command was asked to do: frozen dataclasses, checked when they are made.

The parser fills them from `option_table.py`, which describes every field. Plain Python: a wrong
option is refused before any library is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from akunu_py.errors import InvalidRequestError
from akunu_py.model.files import BUNDLED_MODEL
from akunu_py.options import (
    DEFAULT_KV_GROUP_SIZE,
    DEFAULT_QUANTIZED_KV_START,
    DEFAULT_RANK_TIMEOUT_S,
    DEFAULT_XTC_THRESHOLD,
    KVQuantization,
    Options,
    Sampling,
    check_max_kv_size,
)
from akunu_py.server.settings import ServerSettings


@dataclass(frozen=True)
class ModelSettings:
    """Which model to load, and how; see `akunu_py.load`."""

    name: str = BUNDLED_MODEL
    weights: str = "auto"
    max_context: int | None = None
    draft_model: str | None = None
    prefill_step_size: int | None = None
    adapter_path: str | None = None
    trust_remote_code: bool = False
    chat_template: str | None = None
    use_default_chat_template: bool = False
    chat_template_args: Mapping[str, Any] | None = None
    prompt_cache_bytes: int | None = None
    prompt_cache_dir: Path | None = None
    prompt_cache_file: Path | None = None
    kv_bits: int | None = None
    kv_group_size: int = DEFAULT_KV_GROUP_SIZE
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START
    max_kv_size: int | None = None
    projects: tuple[str, ...] = ()
    remembers: bool = False
    pipeline: bool = False
    rank_timeout: float = DEFAULT_RANK_TIMEOUT_S

    def __post_init__(self) -> None:
        check_max_kv_size(self.max_kv_size, self.kv_bits)
        if self.kv_bits is not None:
            KVQuantization(self.kv_bits, self.kv_group_size, self.quantized_kv_start)
        elif self.kv_group_size != DEFAULT_KV_GROUP_SIZE:
            raise InvalidRequestError("--kv-group-size needs --kv-bits.")
        elif self.quantized_kv_start != DEFAULT_QUANTIZED_KV_START:
            raise InvalidRequestError("--quantized-kv-start needs --kv-bits.")


def check_xtc(sampling: Sampling) -> None:
    """Refuses settings of XTC that would change nothing.

    Raises:
        InvalidRequestError: if there are such.
    """
    if sampling.greedy and sampling.xtc_probability:
        raise InvalidRequestError("xtc-probability changes sampled answers only; set temp too.")
    if sampling.xtc_threshold != DEFAULT_XTC_THRESHOLD and not sampling.xtc_probability:
        raise InvalidRequestError("xtc-threshold needs xtc-probability.")


@dataclass(frozen=True)
class GenerateSettings:
    """One completion; the prompt `-` stands for standard input."""

    model: ModelSettings
    options: Options
    prompt: str
    suffix: str | None
    as_question: bool
    system_prompt: str | None
    prefill_response: str | None
    as_json: bool
    show_drafts: bool
    verbose: bool

    def __post_init__(self) -> None:
        if self.as_question and self.suffix is not None:
            raise InvalidRequestError("--suffix fills a gap in plain text; leave --chat out.")
        if not self.as_question:
            for flag, given in (
                ("--system-prompt", self.system_prompt),
                ("--prefill-response", self.prefill_response),
                ("--chat-template", self.model.chat_template),
                ("--use-default-chat-template", self.model.use_default_chat_template or None),
                ("--chat-template-args", self.model.chat_template_args),
            ):
                if given is not None:
                    raise InvalidRequestError(f"{flag} needs --chat.")
        if self.as_json and self.show_drafts:
            raise InvalidRequestError("--show-drafts marks printed text; leave --json out.")
        check_xtc(self.options.sampling)


@dataclass(frozen=True)
class ChatSettings:
    """A conversation, until slash commands change it."""

    model: ModelSettings
    options: Options
    system_prompt: str | None
    show_drafts: bool
    quiet: bool

    def __post_init__(self) -> None:
        if self.options.max_tokens == 0:
            raise InvalidRequestError("A chat needs --max-tokens of 1 or more, or -1 for no limit.")
        check_xtc(self.options.sampling)


@dataclass(frozen=True)
class ServeSettings:
    """A server."""

    model: ModelSettings
    server: ServerSettings
    log_level: str

    def __post_init__(self) -> None:
        if self.server.api_key == "":
            raise InvalidRequestError("--api-key must not be empty.")
        defaults = self.server.defaults  # within the limits of a request's fields
        names = {field.name for field in fields(Sampling)}
        given = {
            name: value
            for name, value in vars(defaults).items()
            if name in names and value is not None
        }
        Options(
            max_tokens=None if defaults.max_tokens == -1 else defaults.max_tokens,
            sampling=Sampling(**given),
            num_draft_tokens=defaults.num_draft_tokens,
        )


@dataclass(frozen=True)
class DoctorSettings:
    """What `doctor` examines; `report` names the two files to write, without their suffixes."""

    model: ModelSettings
    as_json: bool
    report: Path | None = None

    def __post_init__(self) -> None:
        if self.report is not None and self.report.suffix in (".md", ".json"):
            object.__setattr__(self, "report", self.report.with_suffix(""))


@dataclass(frozen=True)
class IndexSettings:
    """What to do with the memory of projects: one thing at a time."""

    paths: tuple[Path, ...]
    model: str
    lists: bool
    stats: bool
    forgotten: tuple[Path, ...]
    forgets_all: bool

    def __post_init__(self) -> None:
        asked = [self.paths, self.lists or self.stats, self.forgotten, self.forgets_all]
        if sum(map(bool, asked)) != 1:
            raise InvalidRequestError(
                "index takes either folders, or --list, --stats, --forget PATH or --forget-all."
            )


@dataclass(frozen=True)
class CostSettings:
    """A measurement of what forwards cost."""

    model: ModelSettings
    seconds: float
    as_json: bool
    plot: Path | None


@dataclass(frozen=True)
class ReplaySettings:
    """A replay of known answers with the tokenizer of a model.

    Every drafter is replayed with every number of draft tokens; None leaves the number to the
    planner. Without `costs`, all known ones are used. A fifth of the files in each folder of
    `memory` is replayed without and with a memory of the others.
    """

    files: tuple[Path, ...]
    model: str
    drafters: tuple[str, ...]
    num_draft_tokens: tuple[int | None, ...]
    costs: tuple[str, ...]
    keeps: bool
    max_requests: int | None
    as_json: bool
    plot: Path | None
    memory: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not (self.files or self.memory):
            raise InvalidRequestError("There is nothing to replay: name a FILE or --memory PATH.")
        if self.memory and "auto" not in self.drafters:
            raise InvalidRequestError("--memory needs the drafter auto; add it to --drafter.")


@dataclass(frozen=True)
class SpeedupSettings:
    """A contest with mlx-lm.

    Every drafter is a contestant with every number of draft tokens; None leaves the number to the
    planner. `answers` holds `own`, `forced` or both.
    """

    model: ModelSettings
    drafters: tuple[str, ...]
    num_draft_tokens: tuple[int | None, ...]
    workloads: tuple[str, ...]
    answers: tuple[str, ...]
    data: tuple[Path, ...]
    prompts: int
    rounds: int
    max_tokens: int
    seconds: float
    as_json: bool
    plot: Path | None

    def __post_init__(self) -> None:
        if not (self.workloads or self.data):
            raise InvalidRequestError("There is nothing to time: name --workloads or --data.")
