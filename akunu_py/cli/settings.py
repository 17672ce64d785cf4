"""What each command was asked to do: frozen dataclasses, checked when they are made.

The parser fills them from the option table by the names of their fields. Plain Python: a wrong
option is refused before any library is loaded.
"""

from dataclasses import dataclass
from pathlib import Path

from akunu_py.errors import InvalidRequestError
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import Options, Sampling
from akunu_py.server.settings import ServerSettings


@dataclass(frozen=True)
class ModelSettings:
    """Which model to load, and how.

    Attributes:
        name: the bundled model's name, a folder, or `owner/name` on the hub.
        weights: the layout of its weights, or `auto`.
        max_context: tokens that the cache is to hold; None lets it grow.
        draft_model: the name of a second model that drafts, if any.
    """

    name: str = BUNDLED_MODEL
    weights: str = "auto"
    max_context: int | None = None
    draft_model: str | None = None


@dataclass(frozen=True)
class GenerateSettings:
    """One completion.

    Attributes:
        model: what answers.
        options: how.
        prompt: the text to continue; `-` stands for standard input.
        suffix: the text after a gap to fill; None continues the prompt.
        as_question: whether the prompt is a user's turn, for the chat template.
        system_prompt: the system message before it, if any.
        as_json: whether to print one JSON object instead of text.
        show_drafts: whether to mark draft tokens.
        verbose: whether to report the speed even if standard error is not a terminal.
    """

    model: ModelSettings
    options: Options
    prompt: str
    suffix: str | None
    as_question: bool
    system_prompt: str | None
    as_json: bool
    show_drafts: bool
    verbose: bool

    def __post_init__(self) -> None:
        if self.as_question and self.suffix is not None:
            raise InvalidRequestError("--suffix fills a gap in plain text; leave --chat out.")
        if self.system_prompt is not None and not self.as_question:
            raise InvalidRequestError("--system-prompt needs --chat.")
        if self.as_json and self.show_drafts:
            raise InvalidRequestError("--show-drafts marks printed text; leave --json out.")


@dataclass(frozen=True)
class ChatSettings:
    """A conversation.

    Attributes:
        model: what answers.
        options: how, until a slash command changes it.
        system_prompt: the system message at its start, if any.
        show_drafts: whether to mark draft tokens.
    """

    model: ModelSettings
    options: Options
    system_prompt: str | None
    show_drafts: bool


@dataclass(frozen=True)
class ServeSettings:
    """A server.

    Attributes:
        model: what answers.
        server: its address, its clients and its defaults.
        log_level: how much to write to standard error.
        prefill_step_size: prompt tokens per forward; None leaves it to the engine.
    """

    model: ModelSettings
    server: ServerSettings
    log_level: str
    prefill_step_size: int | None

    def __post_init__(self) -> None:
        if self.server.api_key == "":
            raise InvalidRequestError("--api-key must not be empty.")
        defaults = self.server.defaults  # checked as the fields of a request are
        names = ("temperature", "top_p", "top_k", "min_p")
        given = {name: value for name in names if (value := getattr(defaults, name)) is not None}
        Options(
            max_tokens=None if defaults.max_tokens == -1 else defaults.max_tokens,
            sampling=Sampling(**given),
            num_draft_tokens=defaults.num_draft_tokens,
        )


@dataclass(frozen=True)
class DoctorSettings:
    """What `doctor` examines.

    Attributes:
        model: which model to examine.
        as_json: whether to print one JSON object instead of text.
    """

    model: ModelSettings
    as_json: bool


@dataclass(frozen=True)
class CostSettings:
    """A measurement of what forwards cost.

    Attributes:
        model: what to measure.
        seconds: how long to measure.
        as_json: whether to print one JSON object instead of tables.
        plot: a file to draw the curve into, if any.
    """

    model: ModelSettings
    seconds: float
    as_json: bool
    plot: Path | None


@dataclass(frozen=True)
class ReplaySettings:
    """A replay of known answers, without a model.

    Attributes:
        files: JSON lines with requests and their answers.
        model: whose tokenizer to use.
        drafters: who drafts.
        num_draft_tokens: the most draft tokens of a round, one policy each; None stands for the
            planner.
        costs: published names, files, or `here`; none means all that there are.
        keeps: whether drafters may remember the text of earlier requests.
        max_requests: how many requests of each file to take; None takes all.
        as_json: whether to print one JSON object instead of tables.
        plot: a file to draw the predictions into, if any.
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


@dataclass(frozen=True)
class SpeedupSettings:
    """A contest with mlx-lm.

    Attributes:
        model: whose answers are timed.
        drafters: who drafts.
        num_draft_tokens: the most draft tokens of a round, one contestant each; None stands for
            the planner.
        workloads: which of the built-in ones to run.
        answers: `own`, the model's answers; `forced`, the reference answers; or both.
        data: JSON lines with further requests.
        prompts: requests of each workload, and of each file.
        rounds: how often each contestant answers each request.
        max_tokens: how long answers may be.
        seconds: how long to measure what forwards cost.
        as_json: whether to print one JSON object instead of tables.
        plot: a file to draw the speedups into, if any.
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
