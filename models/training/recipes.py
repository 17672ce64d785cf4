"""What is made: the shape of the model, its curriculum, and how much synthetic text it reads."""

import shutil
from dataclasses import dataclass

from models.training.model import Shape
from models.training.stages import CURRICULUM, Stage


@dataclass(frozen=True)
class Recipe:
    """`documents` structured texts are made, and a multiple of that of everything invented.

    `compiled` trains a quarter faster after half a minute; it needs a C++ compiler.
    """

    shape: Shape
    stages: tuple[Stage, ...]
    documents: int
    compiled: bool = False


EMBER = Recipe(Shape(), CURRICULUM, documents=4000, compiled=shutil.which("c++") is not None)
TINY = Recipe(
    Shape(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=192,
        num_layers=6,
        num_heads=2,
        num_kv_heads=1,
        max_positions=512,
    ),
    (
        Stage("copying", 4, 2, 128, {"repeats": 0.5, "code": 0.5}),
        Stage("edits", 4, 2, 256, {"edits": 0.6, "fim": 0.2, "questions": 0.2}, decays=True),
    ),
    documents=20,
)
"""Everything at its smallest, to see that the steps fit together."""
