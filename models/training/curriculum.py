"""The curriculum of `curriculum.txt`: what is trained on, how long, and at what learning rate."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WARMUP_STEPS = 100


@dataclass(frozen=True)
class Stage:
    """`steps` batches of `rows` x `length` tokens; `mix` maps a kind to its share.

    The rate begins at `peak` of the plateau's, and falls from there if the stage `decays`; that of
    the embedding and the norms is `vectors` of it.
    """

    name: str
    steps: int
    rows: int
    length: int
    mix: Mapping[str, float]
    decays: bool = False
    peak: float = 1.0
    vectors: float = 1.0


def _stage(line: str) -> Stage:
    name, steps, size, rate, vectors, mix = (cell.strip() for cell in line.split("|"))
    rows, length = map(int, size.split(" x "))
    peak, _, falls = rate.partition(" ")
    shares = (part.split("=") for part in mix.split())
    return Stage(
        name,
        int(steps),
        rows,
        length,
        {kind: int(percent) / 100 for kind, percent in shares},
        decays=bool(falls),
        peak=float(peak),
        vectors=float(vectors),
    )


def _read() -> tuple[Stage, ...]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return tuple(_stage(line) for line in text.splitlines() if "|" in line)


CURRICULUM = _read()


def total_steps(stages: Sequence[Stage]) -> int:
    """The steps of all stages together."""
    return sum(stage.steps for stage in stages)


def stage_at(stages: Sequence[Stage], step: int) -> Stage:
    """The stage that step number `step`, counted from zero, belongs to."""
    for stage in stages:
        if step < stage.steps:
            return stage
        step -= stage.steps
    raise ValueError("the step lies beyond the last stage")


def rate_scale(stages: Sequence[Stage], step: int, *, fresh_from: int = 0) -> float:
    """The factor on the plateau's learning rate: up at first, flat where nothing decays, and
    down to a fiftieth over each unbroken run of stages that decay from the same peak.

    The optimizer began at step `fresh_from`."""
    warm = min(1.0, (step + 1 - fresh_from) / WARMUP_STEPS)
    begin = 0
    for _, run in itertools.groupby(stages, key=lambda one: (one.decays, one.peak)):
        course = list(run)
        steps, decays, peak = total_steps(course), course[0].decays, course[0].peak
        if step < begin + steps:
            left = max(1.0 - (step - begin) / steps, 0.02) if decays else 1.0
            return warm * peak * left
        begin += steps
    raise ValueError("the step lies beyond the last stage")
