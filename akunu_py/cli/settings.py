"""The settings of each command: frozen dataclasses that declare its options.

Plain Python: a wrong option is refused before any library is loaded.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from akunu_py.bench import ANSWERS, WORKLOADS
from akunu_py.edits.reading import FORMATS
from akunu_py.edits.text_file import BACKUP
from akunu_py.errors import InvalidRequestError
from akunu_py.option_field import Range, borrowed, check_options, option, part
from akunu_py.option_words import PLANNED, draft_tokens, whole_number
from akunu_py.options import (
    BUNDLED_MODEL,
    DEFAULT_XTC_THRESHOLD,
    DRAFTERS,
    MAX_DRAFT_TOKENS,
    MAX_WAIT_S,
    ModelOptions,
    Options,
    Sampling,
)
from akunu_py.server.settings import ServerSettings

BENCH_DRAFTERS: Final = tuple(name for name in DRAFTERS if name != "model")
EVERY: Final = "all"
LAUNCHED: Final = ("codex", "claude", "opencode", "aider")
DRAFT_COLOURS: Final = "copies green, guesses by a head or draft model cyan, memory blue"

_CHAT_MAX_TOKENS: Final = 1024  # an answer in a conversation often repeats a whole file
_MODEL: Final = "model"
_ANSWER: Final = "answer"
_TEMPLATE: Final = ("chat_template", "use_default_chat_template", "chat_template_args")
_NOT_MEASURED: Final = (
    "draft_model", "projects", "remembers", "prompt_cache_bytes", "prompt_cache_dir",
    "prompt_cache_file",
)  # fmt: skip


def check_xtc(sampling: Sampling) -> None:
    """Refuses settings of XTC that would change nothing."""
    if sampling.greedy and sampling.xtc_probability:
        raise InvalidRequestError(
            "`xtc_probability` changes sampled answers only; set `temperature` too."
        )
    if sampling.xtc_threshold != DEFAULT_XTC_THRESHOLD and not sampling.xtc_probability:
        raise InvalidRequestError("`xtc_threshold` needs `xtc_probability`.")


def _check_drafting(model: ModelOptions, drafter: str, num_draft_tokens: int | None) -> None:
    if drafter == "none" and num_draft_tokens:
        raise InvalidRequestError(
            f"Without a drafter there are no drafts; omit `num_draft_tokens` {num_draft_tokens}."
        )
    if drafter == "model" and model.draft_model is None:
        raise InvalidRequestError("`drafter` model needs `draft_model` NAME.")
    if drafter != "auto" and model.projects:
        raise InvalidRequestError(
            f"`projects` needs the drafter auto, not {drafter}; omit one of the two."
        )


@dataclass(frozen=True)
class GenerateSettings:
    """One completion; the prompt `-` stands for standard input."""

    # fmt: off
    prompt: str = option("", "the text to continue; - reads it from standard input", short="-p",
        metavar="TEXT", required=True)
    suffix: str | None = option(None, "fill the gap between the prompt and this text",
        metavar="TEXT")
    as_question: bool = option(False, "send the prompt as a chat message, with the chat template",
        flag="--chat")
    system_prompt: str | None = option(None, "the system message", metavar="TEXT")
    prefill_response: str | None = option(None, "the beginning of the answer, with --chat; it is "
        "not printed", metavar="TEXT")
    show_drafts: bool = option(False, f"colour accepted draft tokens: {DRAFT_COLOURS}")
    verbose: bool = option(False, "report speed and peak memory, even if standard error is not a "
        "terminal")
    as_json: bool = option(False, "print one JSON object", flag="--json")
    model: ModelOptions = part(ModelOptions, _MODEL,
        without=("prompt_cache_bytes", "prompt_cache_dir", "remembers"))
    options: Options = part(Options, _ANSWER)
    # fmt: on

    def __post_init__(self) -> None:
        if self.as_question and self.suffix is not None:
            raise InvalidRequestError("`suffix` fills a gap in plain text; omit `as_question`.")
        if not self.as_question:
            given = {name: getattr(self, name) for name in ("system_prompt", "prefill_response")}
            given |= {name: getattr(self.model, name) for name in _TEMPLATE}
            for name, value in given.items():
                if value is not None and value is not False:
                    raise InvalidRequestError(f"`{name}` needs `as_question`.")
        if self.as_json and self.show_drafts:
            raise InvalidRequestError("`show_drafts` marks printed text; omit `as_json`.")
        check_xtc(self.options)
        _check_drafting(self.model, self.options.drafter, self.options.num_draft_tokens)


@dataclass(frozen=True)
class ChatSettings:
    """A conversation, until slash commands change it."""

    # fmt: off
    system_prompt: str | None = borrowed(GenerateSettings, "system_prompt")
    show_drafts: bool = borrowed(GenerateSettings, "show_drafts")
    quiet: bool = option(False, "begin without a greeting")
    model: ModelOptions = part(ModelOptions, _MODEL, without=("prompt_cache_dir",),
        defaults={"remembers": True})
    options: Options = part(Options, _ANSWER, without=("grammar",),
        defaults={"max_tokens": _CHAT_MAX_TOKENS})
    # fmt: on

    def __post_init__(self) -> None:
        if self.options.max_tokens == 0:
            raise InvalidRequestError("A chat needs `max_tokens` of 1 or more, or -1 for no limit.")
        check_xtc(self.options)
        _check_drafting(self.model, self.options.drafter, self.options.num_draft_tokens)


def _line_range(word: str) -> tuple[int, int]:
    first, _, last = word.partition(":")
    return whole_number(first), whole_number(last or first)


@dataclass(frozen=True)
class EditSettings:
    """An edit of files."""

    # fmt: off
    files: tuple[str, ...] = option((), "the files to edit; - reads standard input and writes the "
        "result to standard output", flag="FILE", nargs="+", required=True)
    instruction: str = option("", "what to change, in words", flag="INSTRUCTION", required=True)
    lines: tuple[int, int] | None = option(None, "edit these lines; the model sees no others",
        read=_line_range, metavar="A:B")
    function: str | None = option(None, "edit this Python function, method (Class.method) or "
        "class; the model sees no other code")
    answer_format: str = option("auto", "the format to ask the model for: the whole text, "
        "search/replace blocks or a unified diff; auto asks for the whole text, which drafts make "
        "fast. An answer in any of the three is accepted", flag="--format",
        choices=("auto", *FORMATS))
    applies: bool = option(False, "apply the edit without asking, unless something is wrong with "
        "it", flag="--yes", short="-y")
    checks: bool = option(False, "write nothing; the exit code is 1 if a file would change, 4 "
        "if one could not be edited or is doubtful", flag="--check")
    backup: bool = option(False, f"keep the old content of a file in FILE{BACKUP}")
    output: Path | None = option(None, "write the result to this file, replacing it, and leave "
        "the edited file unchanged")
    as_json: bool = option(False, "print one JSON object; without --yes, nothing is applied",
        flag="--json")
    model: ModelOptions = part(ModelOptions, _MODEL,
        without=("prompt_cache_bytes", "prompt_cache_dir", "remembers"))
    options: Options = part(Options, _ANSWER, without=("grammar", "stop"),
        defaults={"max_tokens": None})
    # fmt: on

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise InvalidRequestError("The `instruction` is empty; say what to change.")
        if self.lines and self.function:
            raise InvalidRequestError("Name `lines` or a `function`, not both.")
        several = len(self.files) > 1
        if several and (self.output or self.lines or self.function or "-" in self.files):
            raise InvalidRequestError(
                "`output`, `lines`, `function` and standard input are for one file; name one."
            )
        if "-" in self.files and (self.applies or self.backup):
            raise InvalidRequestError(
                "Standard input cannot be changed; omit `applies` and `backup`."
            )
        if self.output and (self.applies or self.checks or self.backup):
            raise InvalidRequestError(
                "`output` leaves the edited file unchanged; omit `applies`, `checks` and `backup`."
            )
        check_xtc(self.options)
        _check_drafting(self.model, self.options.drafter, self.options.num_draft_tokens)


@dataclass(frozen=True)
class ServeSettings:
    """A server; `model` has the options of the named models, and the name of the first."""

    # fmt: off
    models: tuple[str, ...] = option((), "a model to load at the start: a folder, a name on the "
        f"hub, or `{BUNDLED_MODEL}`; may be repeated. The first one answers requests that name no "
        "model; the other models on this machine are offered too", flag="--model", repeated=True,
        shown=BUNDLED_MODEL, group=_MODEL)
    server: ServerSettings = part(ServerSettings, "server")
    log_file: Path | None = option(None, "write the log and all output to this file, of at most "
        "1 MB; FILE.1 has the output before it", group="server")
    log_level: str = option("INFO", "how much to log: DEBUG, INFO, WARNING, ERROR or CRITICAL",
        read=str.upper, metavar="LEVEL", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        group="server")
    model: ModelOptions = part(ModelOptions, _MODEL, without=("name", "prompt_cache_file"),
        defaults={"remembers": True})
    # fmt: on

    def __post_init__(self) -> None:
        if self.models:
            object.__setattr__(self, "model", replace(self.model, name=self.models[0]))
        for name in ("adapter_path", "draft_model", "mtp"):
            if len(self.models) > 1 and getattr(self.model, name) is not None:
                raise InvalidRequestError(f"`{name}` applies to one model; give one `models`.")
        defaults = self.server.defaults
        _check_drafting(self.model, defaults.drafter, defaults.num_draft_tokens)


@dataclass(frozen=True)
class ServiceSettings:
    """What to do with the service, and the options to install `serve` with."""

    # fmt: off
    action: str = option("", "install, start, stop, status, logs or uninstall", flag="ACTION",
        choices=("install", "start", "stop", "status", "logs", "uninstall"), required=True)
    arguments: tuple[str, ...] = option((), "what follows --", flag=None)
    # fmt: on

    def __post_init__(self) -> None:
        if self.arguments and self.action != "install":
            raise InvalidRequestError(f"Only install takes options; omit {self.arguments[0]}.")


@dataclass(frozen=True)
class PullSettings:
    """A model to fetch from the hub."""

    name: str = option("", "its name on the hub, such as mlx-community/Qwen3-4B-4bit", flag="NAME",
        required=True)  # fmt: skip


@dataclass(frozen=True)
class ListSettings:
    """What to list."""

    names: bool = option(False, "print only the names, one per line")
    models_dirs: tuple[Path, ...] = borrowed(ServerSettings, "models_dirs")
    as_json: bool = borrowed(GenerateSettings, "as_json")

    def __post_init__(self) -> None:
        if self.names and self.as_json:
            raise InvalidRequestError("`names` prints only names; omit `as_json`.")


@dataclass(frozen=True)
class ShowSettings:
    """A model to show."""

    name: str = option("", "its name, or the last part of it", flag="NAME", required=True)
    models_dirs: tuple[Path, ...] = borrowed(ServerSettings, "models_dirs")
    as_json: bool = borrowed(GenerateSettings, "as_json")


@dataclass(frozen=True)
class RmSettings:
    """A model to delete."""

    name: str = borrowed(ShowSettings, "name")
    agrees: bool = option(False, "do not ask", flag="--yes", short="-y")
    models_dirs: tuple[Path, ...] = borrowed(ServerSettings, "models_dirs")


@dataclass(frozen=True)
class PsSettings:
    """Which server to ask."""

    url: str = option("http://127.0.0.1:8080", "the address of the server", metavar="URL")


@dataclass(frozen=True)
class LaunchSettings:
    """A client to start, and the server that it uses."""

    # fmt: off
    client: str = option("", ", ".join(LAUNCHED), flag="CLIENT", choices=LAUNCHED, required=True)
    model: str | None = option(None, "the model that it uses", metavar="NAME",
        shown="the server's first one")
    host: str = borrowed(ServerSettings, "host", help="the server's address", shown=None)
    port: int = borrowed(ServerSettings, "port", help="its port")
    api_key_file: str | None = borrowed(ServerSettings, "api_key_file")
    prints: bool = option(False, "only print the command, for your own settings", flag="--print")
    arguments: tuple[str, ...] = option((), "what follows --", flag=None)
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class CompletionsSettings:
    """The shell to complete commands in."""

    shell: str = option("", "bash, zsh or fish", flag="SHELL", choices=("bash", "zsh", "fish"),
        required=True)  # fmt: skip


@dataclass(frozen=True)
class ManSettings:
    """There is nothing to set."""


@dataclass(frozen=True)
class CostSettings:
    """A measurement of what forward passes cost."""

    # fmt: off
    seconds: float = option(10.0, "how long to measure the cost of forward passes",
        within=Range(0, MAX_WAIT_S, above=True), metavar="S", shown="10")
    as_json: bool = borrowed(GenerateSettings, "as_json")
    model: ModelOptions = part(ModelOptions, _MODEL, without=(*_NOT_MEASURED, *_TEMPLATE))
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class SpeedupSettings:
    """A comparison with mlx-lm of every drafter with every number of draft tokens."""

    # fmt: off
    drafters: tuple[str, ...] = option(("auto", "ngram"),
        f"the drafters: {', '.join(BENCH_DRAFTERS)}, or {EVERY}", flag="--drafter", metavar="NAME",
        choices=(*BENCH_DRAFTERS, EVERY), nargs="+", shown="auto ngram")
    num_draft_tokens: tuple[int | None, ...] = option((None, 4, 8, 16),
        f"maximum number of draft tokens per round; with {PLANNED}, the planner chooses",
        within=Range(0, MAX_DRAFT_TOKENS), read=draft_tokens, nargs="+", shown=f"{PLANNED} 4 8 16")
    workloads: tuple[str, ...] = option(WORKLOADS,
        f"built-in requests to run: {', '.join(WORKLOADS)}", metavar="KIND", choices=WORKLOADS,
        nargs="*", shown="all")
    data: tuple[Path, ...] = option((), "files with more requests, in the format of `bench "
        "replay`; each file is a workload", nargs="+")
    answers: str = option("both", "own: the model's own answers; forced: the reference answers, as "
        "from a better model, with all forward passes computed",
        choices=(*ANSWERS, "both"))
    prompts: int = option(4, "requests per workload or file", within=Range(1), quick=2)
    rounds: int = option(3, "how many times each contestant answers each request",
        within=Range(1), quick=1)
    max_tokens: int = option(192, "most tokens to generate", within=Range(2),
        short="-m", quick=64)
    quick: bool = option(False, "2 requests, 1 round, 64 tokens: a rough result")
    seconds: float = borrowed(CostSettings, "seconds")
    as_json: bool = borrowed(GenerateSettings, "as_json")
    model: ModelOptions = part(ModelOptions, _MODEL, without=_NOT_MEASURED)
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if not (self.workloads or self.data):
            raise InvalidRequestError("There is nothing to time; name `workloads` or `data`.")


@dataclass(frozen=True)
class ReplaySettings:
    """A replay of known answers with the tokenizer of a model."""

    # fmt: off
    files: tuple[Path, ...] = option((), "JSON lines, gzipped or not: prompts and their answers",
        flag="FILE", nargs="*")
    drafters: tuple[str, ...] = borrowed(SpeedupSettings, "drafters")
    num_draft_tokens: tuple[int | None, ...] = borrowed(SpeedupSettings, "num_draft_tokens",
        (None,), shown=PLANNED)
    memory: tuple[Path, ...] = option((), "replay a fifth of the files in a folder, without and "
        "with a memory of the others", metavar="PATH", nargs="+")
    model: str = option(BUNDLED_MODEL, "the model whose tokenizer to use; its weights are not "
        "needed")
    costs: tuple[str, ...] = option((), "published costs by name (m4-pro, m5-max ...), or `here`",
        nargs="+", shown="all published ones, and those measured here")
    keeps: bool = option(False, "let drafters use the text of earlier requests", flag="--keep")
    max_requests: int | None = option(None, "take the first N requests of each file",
        within=Range(1), shown="all")
    as_json: bool = borrowed(GenerateSettings, "as_json")
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        if not (self.files or self.memory):
            raise InvalidRequestError(
                "There is nothing to replay; name a `files` or `memory` PATH."
            )
        if self.memory and not {"auto", EVERY} & {*self.drafters}:
            raise InvalidRequestError("`memory` needs the drafter auto; add it to `drafters`.")


@dataclass(frozen=True)
class IndexSettings:
    """What to do with the memory of projects: one action at a time."""

    # fmt: off
    paths: tuple[Path, ...] = option((), "project folders to index, or to index again; single "
        "files in them to index even if they are hidden or likely secrets",
        flag="PATH", nargs="*")
    lists: bool = option(False, "list the projects in memory", flag="--list")
    stats: bool = option(False, "list them with their sizes")
    forgotten: tuple[Path, ...] = option((), "delete all that is known about the project in this "
        "folder; may be repeated", flag="--forget", metavar="PATH", repeated=True)
    forgets_all: bool = option(False, "delete all that is known about any project",
        flag="--forget-all")
    model: str = borrowed(ReplaySettings, "model")
    # fmt: on

    def __post_init__(self) -> None:
        asked = [self.paths, self.lists or self.stats, self.forgotten, self.forgets_all]
        if sum(map(bool, asked)) != 1:
            raise InvalidRequestError(
                "index takes one of: folders, --list, --stats, --forget PATH, --forget-all."
            )


@dataclass(frozen=True)
class DoctorSettings:
    """What `doctor` examines; `report` names the two files to write, without their suffixes."""

    # fmt: off
    as_json: bool = borrowed(GenerateSettings, "as_json")
    report: Path | None = option(None, "measure for a few minutes and write a report to share, "
        "FILE.md and FILE.json", nargs="?", const=Path("akunu-report"))
    model: ModelOptions = part(ModelOptions, _MODEL, without=(*_NOT_MEASURED, *_TEMPLATE))
    # fmt: on

    def __post_init__(self) -> None:
        if self.report is not None and self.report.suffix in (".md", ".json"):
            object.__setattr__(self, "report", self.report.with_suffix(""))
