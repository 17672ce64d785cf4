"""What `bench` and `doctor` were asked to do. Plain Python, as `settings.py`."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from akunu_py.cli.settings import ModelSettings, number, text
from akunu_py.errors import InvalidRequestError

MEASURING_SECONDS: Final = 10.0
_LONGEST: Final = 3600.0


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
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--plot", metavar="FILE", type=text, help="draw the curve into a .png, .svg or .pdf"
        )
        ModelSettings.add_options(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        if not 0 < words.seconds <= _LONGEST:
            raise InvalidRequestError(
                f"--seconds must be above 0 and at most {_LONGEST:g}, not {words.seconds:g}."
            )
        plot = Path(words.plot).expanduser() if words.plot is not None else None
        return cls(ModelSettings.from_words(words), words.seconds, words.json, plot)


@dataclass(frozen=True)
class BenchSettings:
    """A measurement.

    Attributes:
        measure: what is measured, one of `MEASURES`.
        settings: how.
    """

    measure: str
    settings: CostSettings

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        measures = parser.add_subparsers(
            title="measurements", metavar="WHAT", dest="measure", required=True
        )
        for name, (summary, settings) in MEASURES.items():
            own = measures.add_parser(
                name,
                help=summary,
                description=f"{summary[0].upper()}{summary[1:]}.",
                allow_abbrev=False,
            )
            settings.add_options(own)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        return cls(words.measure, MEASURES[words.measure][1].from_words(words))


MEASURES: Final = {
    "cost": ("what a forward of M tokens costs here, and from when drafts pay", CostSettings),
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
