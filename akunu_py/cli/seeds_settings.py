"""What `bench seeds` was asked to do. Plain Python, as `settings.py`."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from akunu_py.bench.seeds.cases import QUICK, Size
from akunu_py.bench.seeds.char_recipe import PUBLISHED_STEPS
from akunu_py.cli.bench_outputs import add_outputs, file_path
from akunu_py.cli.settings import text, whole_number
from akunu_py.errors import InvalidRequestError

STEPS: Final = (PUBLISHED_STEPS, 2000)
"""As long as the published model was trained, and until one has learnt something."""


@dataclass(frozen=True)
class SeedsSettings:
    """A run of the seed benchmark.

    Attributes:
        text: what to learn; None takes Python's language reference.
        steps: of training, a model each.
        size: how much to measure.
        as_json: whether one JSON object is wanted instead of tables.
        plot: a file to draw the speedups into, if any.
    """

    text: Path | None
    steps: tuple[int, ...]
    size: Size
    as_json: bool = False
    plot: Path | None = None

    @staticmethod
    def add_options(parser: ArgumentParser) -> None:
        usual = Size()
        parser.add_argument(
            "--text", metavar="FILE", type=text,
            help="any text to learn, TinyShakespeare say (default: Python's language reference)",
        )  # fmt: skip
        parser.add_argument(
            "--steps", metavar="N", type=whole_number, nargs="+",
            help="training steps, a model each; trained ones are kept "
            f"(default: {' '.join(map(str, STEPS))})",
        )  # fmt: skip
        parser.add_argument(
            "--seeds", metavar="N", type=whole_number,
            help=f"how often prompts are drawn anew (default: {usual.seeds})",
        )  # fmt: skip
        parser.add_argument(
            "--requests", metavar="N", type=whole_number,
            help=f"prompts a seed (default: {usual.requests})",
        )  # fmt: skip
        parser.add_argument(
            "--max-tokens", "-m", metavar="N", type=whole_number,
            help="characters of an answer; longer ones have twice as many "
            f"(default: {usual.max_tokens})",
        )  # fmt: skip
        parser.add_argument(
            "--quick", action="store_true",
            help=f"{QUICK.seeds} seed, {QUICK.requests} requests, {QUICK.max_tokens} characters, "
            "the shortest training: a rough idea",
        )  # fmt: skip
        add_outputs(parser)

    @classmethod
    def from_words(cls, words: Namespace) -> Self:
        usual = QUICK if words.quick else Size()
        size = Size(
            usual.seeds if words.seeds is None else words.seeds,
            usual.requests if words.requests is None else words.requests,
            usual.max_tokens if words.max_tokens is None else words.max_tokens,
        )
        steps = words.steps or (STEPS[:1] if words.quick else STEPS)
        if min(steps) < 1:
            raise InvalidRequestError(f"--steps must be 1 or more, not {min(steps)}.")
        return cls(
            file_path(words.text),
            tuple(dict.fromkeys(steps)),
            size,
            words.json,
            file_path(words.plot),
        )
