"""The measurements of `bench`: cost, speedup and replay, as tables and JSON."""

from typing import Final

WORKLOADS: Final = ("edit", "fill-in", "code", "structure", "question", "novel")
"""The kinds of built-in requests."""

OWN, FORCED = ANSWERS = "own", "forced"
"""Which answers are decoded: the model's own, or the reference in their place."""
