"""What `bench seeds` was asked to do. Plain Python, as `settings.py`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from akunu_py.bench.seeds.cases import Size
from akunu_py.bench.seeds.char_recipe import PUBLISHED_STEPS

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
