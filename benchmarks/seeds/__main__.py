"""Samples with bigram and trigram drafts on a character model that is trained here.

    python -m benchmarks.seeds [--text FILE] [--steps N ...] [--quick] [--plot FILE]

Trains the models that were not trained yet, measures, and prints the figures beside those that
were published; `results/seeds.md` is the record of a run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.errors import AkunuError
from akunu_py.loading import load
from akunu_py.machine.backend import find_backend
from benchmarks.records import command, progress_line
from benchmarks.seeds.char_model import PUBLISHED_STEPS, CharModel, Recipe, find_char_model
from benchmarks.seeds.char_text import CharText, read_char_text
from benchmarks.seeds.measure import QUICK, Size, measure_seeds
from benchmarks.seeds.plot import draw_seeds
from benchmarks.seeds.report import MeasuredModel, SeedsReport, SeedsRow

STEPS: Final = (PUBLISHED_STEPS, 2000)
"""The published model's number of training steps, and enough for a model to learn something."""


def read_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What is to be measured: the options, with the `size`."""
    parser = argparse.ArgumentParser(prog="benchmarks.seeds", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--text", metavar="FILE", type=Path,
        help="any text to learn, such as TinyShakespeare (default: Python's language reference)",
    )  # fmt: skip
    parser.add_argument(
        "--steps", metavar="N", type=int, nargs="+",
        help="training steps, one model for each number; trained models are kept "
        f"(default: {' '.join(map(str, STEPS))})",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help=f"{QUICK.seeds} seed, {QUICK.requests} requests, {QUICK.max_tokens} characters, the "
        "shortest training: a rough idea",
    )  # fmt: skip
    parser.add_argument(
        "--plot", metavar="FILE", type=Path, help="draw it into a .png, .svg or .pdf"
    )
    options = parser.parse_args(words)
    options.size = QUICK if options.quick else Size()
    steps = options.steps or (STEPS[:1] if options.quick else STEPS)
    if min(steps) < 1:
        parser.error(f"--steps must be 1 or more, not {min(steps)}.")
    options.steps = tuple(dict.fromkeys(steps))
    return options


def measure(model: CharModel, text: CharText, size: Size) -> MeasuredModel:
    """A trained model with the rows of all cases."""
    progress = progress_line(f"pairs with the model of {model.steps:,} steps")
    outcomes = measure_seeds(load(str(model.folder)), text, size, progress)
    return MeasuredModel(model, [SeedsRow.of(outcome) for outcome in outcomes])


def run(options: argparse.Namespace) -> None:
    """Trains what is not trained yet, measures and prints; progress goes to standard error.

    Raises:
        AkunuError: if the text cannot be read, or nothing can be measured.
    """
    backend = find_backend()
    text = read_char_text(options.text)
    models = [
        find_char_model(text, Recipe(steps=steps), progress_line(f"of {steps:,} training steps"))
        for steps in options.steps
    ]
    measured = [measure(model, text, options.size) for model in models]
    report = SeedsReport(describe_machine(backend), text, options.size, measured)
    if options.plot is not None:
        draw_seeds(report, options.plot)
    print(f"# Sampled bigram and trigram drafts on a character model\n\nBy `{command()}`.\n")
    print(f"{machine_line(report.machine)}\n\n{report.markdown()}")
    if options.plot is not None:
        print(f"\nDrawn into {options.plot}.")


def main(words: Sequence[str] | None = None) -> None:
    try:
        run(read_options(words))
    except AkunuError as error:
        sys.exit(f"benchmarks.seeds: {error}")


if __name__ == "__main__":
    main()
