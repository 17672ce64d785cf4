"""What `bench` and `doctor` were asked to do. Plain Python, as `settings.py`."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from akunu_py.bench.baselines import ALL_DRAFTERS
from akunu_py.cli.bench_outputs import add_outputs, file_path
from akunu_py.cli.option_words import AS_MANY_AS_PAY
from akunu_py.cli.settings import ModelSettings, Settings, number, text, whole_number
from akunu_py.errors import InvalidRequestError
from akunu_py.model_files import BUNDLED_MODEL
from akunu_py.options import MOST_DRAFT_TOKENS

MEASURING_SECONDS: Final = 10.0
_LONGEST: Final = 3600.0
_ALL: Final = "all"
_ANSWERS: Final = ("own", "forced")
WORKLOADS: Final = ("edit", "fill-in", "structure", "question", "novel")


@dataclass(frozen=True)
class CostSettings:
    """A cost curve.

    Attributes:
        model: what to measure.
        seconds: how long to measure.
        as_json: whether one JSON object is wanted instead of tables.
        plot: a file to draw it into, if any.
    """

    model: ModelSettings
    seconds: float = MEASURING_SECONDS
    as_json: bool = False
    plot: Path | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--seconds", metavar="S", type=number, default=MEASURING_SECONDS,
            help=f"how long to measure (default: {MEASURING_SECONDS:g})",
        )  # fmt: skip
        add_outputs(parser)
        ModelSettings.add_options(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        _check_seconds(words.seconds)
        model = ModelSettings.from_words(words)
        return cls(model, words.seconds, words.json, file_path(words.plot))


@dataclass(frozen=True)
class ReplaySettings:
    """A replay of known answers, without a model.

    Attributes:
        files: JSON lines with requests and their answers.
        model: whose tokenizer to use.
        drafters: who drafts.
        drafts: how many tokens a round verifies at most, one policy each; None stands for the
            planner.
        costs: published names, files, or `here`; none means all that there are.
        keeps: whether drafters may remember the text of earlier requests.
        most: how many requests to take of each file at most; None takes all.
        as_json: whether one JSON object is wanted instead of tables.
        plot: a file to draw the predictions into, if any.
    """

    files: tuple[Path, ...]
    model: str = BUNDLED_MODEL
    drafters: tuple[str, ...] = ("auto", "ngram")
    drafts: tuple[int | None, ...] = (None,)
    costs: tuple[str, ...] = ()
    keeps: bool = False
    most: int | None = None
    as_json: bool = False
    plot: Path | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument(
            "files", metavar="FILE", type=text, nargs="+",
            help="JSON lines, gzipped or not: prompts and their answers",
        )  # fmt: skip
        parser.add_argument(
            "--model", metavar="NAME", type=text, default=BUNDLED_MODEL,
            help=f"whose tokenizer to use; its weights are not needed (default: {BUNDLED_MODEL})",
        )  # fmt: skip
        _add_drafters(parser, "auto ngram")
        _add_drafts(parser, AS_MANY_AS_PAY)
        parser.add_argument(
            "--costs", metavar="NAME", type=text, nargs="+", default=[],
            help="published costs by name (m4-pro, m5-max ...), a file that `bench cost --json` "
            "made, or `here` (default: all published ones, and those of here if measured)",
        )  # fmt: skip
        parser.add_argument(
            "--keep", action="store_true",
            help="let drafters that remember text know one answer from another request",
        )  # fmt: skip
        parser.add_argument(
            "--max-requests", metavar="N", type=whole_number,
            help="take the first N requests of each file (default: all)",
        )  # fmt: skip
        add_outputs(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        if words.max_requests is not None and words.max_requests < 1:
            raise InvalidRequestError(
                f"--max-requests must be 1 or more, not {words.max_requests}."
            )
        return cls(
            tuple(Path(file).expanduser() for file in words.files),
            words.model,
            _drafters(words),
            _drafts(words),
            tuple(words.costs),
            words.keep,
            words.max_requests,
            words.json,
            file_path(words.plot),
        )


@dataclass(frozen=True)
class SpeedupSettings:
    """A contest with mlx-lm.

    Attributes:
        model: whose answers are timed.
        drafters: who drafts.
        drafts: how many tokens a round verifies at most, a contestant each; None stands for the
            planner.
        workloads: which of the built-in ones to run.
        answers: whose answers: the model's own, forced ones, or both.
        data: JSON lines with further requests.
        prompts: requests of each workload, and of each file.
        rounds: how often each request is answered by each contestant.
        max_tokens: how long answers may be.
        seconds: how long to measure what forwards cost.
        as_json: whether one JSON object is wanted instead of tables.
        plot: a file to draw the speedups into, if any.
    """

    model: ModelSettings
    drafters: tuple[str, ...]
    drafts: tuple[int | None, ...]
    workloads: tuple[str, ...]
    answers: tuple[str, ...]
    data: tuple[Path, ...]
    prompts: int
    rounds: int
    max_tokens: int
    seconds: float
    as_json: bool = False
    plot: Path | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        _add_drafters(parser, "auto ngram")
        _add_drafts(parser, f"{AS_MANY_AS_PAY} 4 8 16")
        parser.add_argument(
            "--workloads", metavar="KIND", nargs="*", choices=WORKLOADS, default=list(WORKLOADS),
            help=f"built-in ones to run: {', '.join(WORKLOADS)} (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--data", metavar="FILE", type=text, nargs="+", default=[],
            help="further requests, as `bench replay` reads them; each file is a workload",
        )  # fmt: skip
        parser.add_argument(
            "--answers", choices=(*_ANSWERS, "both"), default="both",
            help="the model's own, or the right ones in their place, every forward paid for all "
            "the same: what a better model would get (default: both)",
        )  # fmt: skip
        parser.add_argument(
            "--prompts", metavar="N", type=whole_number,
            help="requests of each workload and file (default: 4)",
        )  # fmt: skip
        parser.add_argument(
            "--rounds", metavar="N", type=whole_number,
            help="how often each contestant answers each request (default: 3)",
        )  # fmt: skip
        parser.add_argument(
            "--max-tokens", "-m", metavar="N", type=whole_number,
            help="tokens to generate at most (default: 192)",
        )  # fmt: skip
        parser.add_argument(
            "--seconds", metavar="S", type=number, default=MEASURING_SECONDS,
            help=f"how long to measure what forwards cost (default: {MEASURING_SECONDS:g})",
        )  # fmt: skip
        parser.add_argument(
            "--quick", action="store_true", help="2 requests, 1 round, 64 tokens: a rough idea"
        )
        add_outputs(parser)
        ModelSettings.add_options(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        _check_seconds(words.seconds)
        usual = (2, 1, 64) if words.quick else (4, 3, 192)
        asked = (words.prompts, words.rounds, words.max_tokens)
        sizes = [own if given is None else given for given, own in zip(asked, usual, strict=True)]
        for name, least, size in zip(("prompts", "rounds", "max-tokens"), (1, 1, 2), sizes,
                                     strict=True):  # fmt: skip
            if size < least:
                raise InvalidRequestError(f"--{name} must be {least} or more, not {size}.")
        if not (words.workloads or words.data):
            raise InvalidRequestError("There is nothing to time: name --workloads or --data.")
        prompts, rounds, max_tokens = sizes
        return cls(
            ModelSettings.from_words(words),
            _drafters(words),
            _drafts(words),
            tuple(words.workloads),
            _ANSWERS if words.answers == "both" else (words.answers,),
            tuple(Path(file).expanduser() for file in words.data),
            prompts,
            rounds,
            max_tokens,
            words.seconds,
            words.json,
            file_path(words.plot),
        )


@dataclass(frozen=True)
class BenchSettings:
    """A measurement.

    Attributes:
        measure: what is measured, one of `MEASURES`.
        settings: how.
    """

    measure: str
    settings: Settings

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        measures = parser.add_subparsers(
            title="measurements", metavar="WHAT", dest="measure", required=True
        )
        for name, measure in MEASURES.items():
            own = measures.add_parser(
                name,
                help=measure.summary,
                description=f"{measure.summary[0].upper()}{measure.summary[1:]}.",
                allow_abbrev=False,
            )
            measure.settings.add_options(own)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        return cls(words.measure, MEASURES[words.measure].settings.from_words(words))


class Measure(NamedTuple):
    """A measurement: what it tells, its options, and the module whose `run(settings)` makes it."""

    summary: str
    settings: type[Settings]
    home: str


MEASURES: Final = {
    "cost": Measure(
        "what a forward of M tokens costs here, and from when drafts pay",
        CostSettings,
        "akunu_py.cli.bench_cost",
    ),
    "speedup": Measure(
        "how much faster than mlx-lm answers come, on text of several kinds",
        SpeedupSettings,
        "akunu_py.cli.bench_speedup",
    ),
    "replay": Measure(
        "what drafting would bring on answers that are known, here or on another chip: "
        "a prediction, without a model",
        ReplaySettings,
        "akunu_py.cli.bench_replay",
    ),
}


@dataclass(frozen=True)
class DoctorSettings:
    """An examination.

    Attributes:
        model: which model it is to run.
        as_json: whether one JSON object is wanted instead of text.
    """

    model: ModelSettings
    as_json: bool = False

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        ModelSettings.add_options(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        return cls(ModelSettings.from_words(words), words.json)


def draft_number(word: str) -> int | None:
    """Reads a number of drafts, or the word that leaves it to the planner; for argparse."""
    if word == AS_MANY_AS_PAY:
        return None
    drafts = whole_number(word)
    if not 0 <= drafts <= MOST_DRAFT_TOKENS:
        raise ArgumentTypeError(f"{drafts} is not from 0 to {MOST_DRAFT_TOKENS}")
    return drafts


def _add_drafters(parser: ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--drafter", metavar="NAME", nargs="+", choices=(*ALL_DRAFTERS, _ALL),
        default=default.split(),
        help=f"who drafts: {', '.join(ALL_DRAFTERS)}, or {_ALL} (default: {default})",
    )  # fmt: skip


def _add_drafts(parser: ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--num-draft-tokens", metavar="N", nargs="+", type=draft_number,
        default=[draft_number(word) for word in default.split()],
        help=f"drafts a round verifies, up to {MOST_DRAFT_TOKENS}; {AS_MANY_AS_PAY} leaves it to "
        f"the planner (default: {default})",
    )  # fmt: skip


def _drafters(words: Namespace) -> tuple[str, ...]:
    """The drafters that were named, each once; all that draft anything, if that was said."""
    if _ALL in words.drafter:
        return tuple(name for name in ALL_DRAFTERS if name != "none")
    return tuple(dict.fromkeys(words.drafter))


def _drafts(words: Namespace) -> tuple[int | None, ...]:
    return tuple(dict.fromkeys(words.num_draft_tokens))


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= _LONGEST:
        raise InvalidRequestError(
            f"--seconds must be above 0 and at most {_LONGEST:g}, not {seconds:g}."
        )
