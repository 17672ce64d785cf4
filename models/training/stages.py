"""The curriculum: what is trained on, for how many steps, and at what learning rate.

Copying first, edits next, long functions last. The rate is a warm-up, a plateau and a decay;
then plateau and decay once more, because what the first decay reached is a good place to go on
from, and a run can be lengthened that way at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WARMUP_STEPS = 100


@dataclass(frozen=True)
class Stage:
    """`steps` batches of `rows` x `length` tokens; `mix` maps a kind to its share.

    The rate begins at `peak` of the plateau's, and falls from there if the stage `decays`; that of
    the embedding and the norms is `vectors` of it. Where there are layers in `only`, no others
    change.
    """

    name: str
    steps: int
    rows: int
    length: int
    mix: Mapping[str, float]
    decays: bool = False
    peak: float = 1.0
    vectors: float = 1.0
    only: tuple[int, ...] = ()


_COPYING = {"repeats": 0.60, "edits": 0.30, "code": 0.10}
_SHORT = {
    "repeats": 0.06,
    "edits": 0.70,
    "code": 0.06,
    "fim": 0.06,
    "questions": 0.10,
    "structured": 0.02,
}
_EDITS = {
    "repeats": 0.06,
    "edits": 0.58,
    "code": 0.08,
    "fim": 0.14,
    "questions": 0.10,
    "structured": 0.04,
}
_LONG = {
    "repeats": 0.05,
    "edits": 0.41,
    "long_edits": 0.22,
    "code": 0.06,
    "fim": 0.14,
    "questions": 0.08,
    "structured": 0.04,
}
_AGAIN = {
    "repeats": 0.03,
    "edits": 0.63,
    "code": 0.02,
    "fim": 0.18,
    "questions": 0.10,
    "structured": 0.04,
}
_LONG_AGAIN = {
    "repeats": 0.02,
    "edits": 0.28,
    "long_edits": 0.34,
    "code": 0.01,
    "fim": 0.20,
    "questions": 0.13,
    "structured": 0.02,
}
_LONGEST = {
    "repeats": 0.03,
    "edits": 0.25,
    "long_edits": 0.48,
    "code": 0.06,
    "fim": 0.10,
    "questions": 0.06,
    "structured": 0.02,
}
_UP_TO_1024 = {
    "repeats": 0.01,
    "edits": 0.44,
    "long_edits": 0.26,
    "code": 0.02,
    "fim": 0.16,
    "questions": 0.09,
    "structured": 0.02,
}
_UP_TO_2048 = {
    "repeats": 0.01,
    "edits": 0.30,
    "long_edits": 0.43,
    "code": 0.02,
    "fim": 0.13,
    "questions": 0.09,
    "structured": 0.02,
}
_ONCE_MORE = {
    "edits": 0.56,
    "code": 0.14,
    "fim": 0.18,
    "questions": 0.07,
    "structured": 0.03,
    "repeats": 0.02,
}
_LONG_ONCE_MORE = {
    "edits": 0.40,
    "long_edits": 0.20,
    "code": 0.12,
    "fim": 0.18,
    "questions": 0.07,
    "structured": 0.03,
}
_LONGEST_ONCE_MORE = {
    "edits": 0.28,
    "long_edits": 0.40,
    "code": 0.10,
    "fim": 0.14,
    "questions": 0.06,
    "structured": 0.02,
}
_HOLES = {
    "fim": 0.54,
    "code": 0.14,
    "edits": 0.22,
    "long_edits": 0.04,
    "questions": 0.05,
    "structured": 0.01,
}
_HOLES_AND_EDITS = {
    "fim": 0.40,
    "code": 0.08,
    "edits": 0.28,
    "long_edits": 0.18,
    "questions": 0.06,
}
_HOLES_AND_LONGEST = {
    "fim": 0.28,
    "code": 0.06,
    "edits": 0.24,
    "long_edits": 0.36,
    "questions": 0.06,
}
_FIRST_MESSAGES = {
    "short_edits": 0.29,
    "refusals": 0.07,
    "chats": 0.15,
    "edits": 0.28,
    "fim": 0.07,
    "code": 0.09,
    "questions": 0.05,
}
_CHATS = {
    "short_edits": 0.14,
    "refusals": 0.06,
    "chats": 0.18,
    "edits": 0.22,
    "long_edits": 0.21,
    "fim": 0.07,
    "code": 0.08,
    "questions": 0.04,
}
_LONGEST_CHATS = {
    "short_edits": 0.14,
    "refusals": 0.04,
    "chats": 0.12,
    "edits": 0.18,
    "long_edits": 0.42,
    "fim": 0.03,
    "code": 0.04,
    "questions": 0.03,
}
_EDITS_AT_LAST = {
    "short_edits": 0.33,
    "edits": 0.29,
    "chats": 0.11,
    "refusals": 0.05,
    "fim": 0.12,
    "code": 0.07,
    "questions": 0.03,
}
_LONG_AT_LAST = {
    "short_edits": 0.22,
    "edits": 0.22,
    "long_edits": 0.24,
    "chats": 0.12,
    "refusals": 0.04,
    "fim": 0.09,
    "code": 0.05,
    "questions": 0.02,
}
_REAL_EDITS = {
    "edits": 0.44,
    "short_edits": 0.20,
    "fim": 0.15,
    "chats": 0.08,
    "refusals": 0.06,
    "code": 0.06,
    "questions": 0.01,
}
_LONGEST_REAL_EDITS = {
    "edits": 0.20,
    "long_edits": 0.45,
    "short_edits": 0.10,
    "fim": 0.08,
    "chats": 0.09,
    "refusals": 0.04,
    "code": 0.04,
}
_LONG_REAL_EDITS = {
    "edits": 0.30,
    "long_edits": 0.22,
    "short_edits": 0.15,
    "fim": 0.14,
    "chats": 0.09,
    "refusals": 0.05,
    "code": 0.05,
}
_DEEPER = {
    "edits": 0.42,
    "short_edits": 0.17,
    "fim": 0.15,
    "chats": 0.08,
    "refusals": 0.06,
    "code": 0.10,
    "questions": 0.02,
}
_LONG_DEEPER = {
    "edits": 0.26,
    "long_edits": 0.21,
    "short_edits": 0.13,
    "fim": 0.12,
    "chats": 0.09,
    "refusals": 0.06,
    "code": 0.12,
    "questions": 0.01,
}
_PLAIN_CODE = {
    "code": 0.32,
    "fim": 0.12,
    "edits": 0.18,
    "long_edits": 0.16,
    "short_edits": 0.10,
    "chats": 0.06,
    "refusals": 0.06,
}
_EDITS_IN_THE_END = {
    "edits": 0.29,
    "long_edits": 0.23,
    "short_edits": 0.18,
    "chats": 0.09,
    "refusals": 0.06,
    "code": 0.08,
    "fim": 0.07,
}
_ELEVEN = {
    "edits": 0.36,
    "long_edits": 0.14,
    "short_edits": 0.16,
    "chats": 0.10,
    "refusals": 0.05,
    "fim": 0.09,
    "code": 0.09,
    "questions": 0.01,
}
_ELEVEN_LONG = {
    "edits": 0.28,
    "long_edits": 0.27,
    "short_edits": 0.13,
    "chats": 0.11,
    "refusals": 0.05,
    "fim": 0.07,
    "code": 0.08,
    "questions": 0.01,
}
_ELEVEN_LONGEST = {
    "edits": 0.22,
    "long_edits": 0.40,
    "short_edits": 0.11,
    "chats": 0.10,
    "refusals": 0.05,
    "fim": 0.05,
    "code": 0.06,
    "questions": 0.01,
}
_QUESTIONS = {
    "repeats": 0.02,
    "edits": 0.46,
    "code": 0.02,
    "fim": 0.12,
    "questions": 0.36,
    "structured": 0.02,
}
CURRICULUM: tuple[Stage, ...] = (
    Stage("copying", 300, 8, 256, _COPYING),
    Stage("short edits", 1300, 8, 256, _SHORT),
    Stage("edits", 1500, 4, 512, _EDITS),
    Stage("long edits", 500, 2, 1024, _LONG, decays=True),
    Stage("all edits", 800, 4, 512, _LONG, decays=True),
    Stage("longest edits", 250, 1, 2048, _LONGEST, decays=True),
    Stage("edits again", 1450, 4, 512, _AGAIN),
    Stage("more edits", 1500, 4, 512, _AGAIN, decays=True),
    Stage("long edits again", 1000, 2, 1024, _LONG_AGAIN, decays=True),
    Stage("longest edits again", 300, 1, 2048, _LONG_AGAIN, decays=True),
    Stage("questions", 400, 8, 256, _QUESTIONS, decays=True, peak=0.3),
    Stage("up to 1,024", 1800, 2, 1024, _UP_TO_1024, decays=True, peak=0.5),
    Stage("up to 2,048", 1200, 1, 2048, _UP_TO_2048, decays=True, peak=0.5),
    Stage("edits once more", 1250, 8, 512, _ONCE_MORE, decays=True, peak=0.6),
    Stage("long edits once more", 600, 4, 1024, _LONG_ONCE_MORE, decays=True, peak=0.6),
    Stage("longest edits once more", 150, 2, 2048, _LONGEST_ONCE_MORE, decays=True, peak=0.25),
    Stage("holes", 1400, 8, 512, _HOLES, decays=True, peak=0.7),
    Stage("holes and edits", 300, 4, 1024, _HOLES_AND_EDITS, decays=True, peak=0.7),
    Stage("holes and longest edits", 150, 2, 2048, _HOLES_AND_LONGEST, decays=True, peak=0.25),
    Stage("first messages", 3000, 8, 512, _FIRST_MESSAGES, decays=True, peak=0.4),
    Stage("conversations", 1000, 4, 1024, _CHATS, decays=True, peak=0.4),
    Stage("longest edits at last", 300, 2, 2048, _LONGEST_CHATS, decays=True, peak=0.25),
    Stage("first messages again", 2000, 8, 512, _EDITS_AT_LAST, decays=True, peak=0.5),
    Stage("longer ones again", 500, 4, 1024, _LONG_AT_LAST, decays=True, peak=0.5),
    Stage("longest ones again", 150, 2, 2048, _LONGEST_CHATS, decays=True, peak=0.25),
    Stage("real edits", 1400, 8, 512, _REAL_EDITS, decays=True, peak=0.4),
    Stage("longest real edits", 100, 2, 2048, _LONGEST_REAL_EDITS, decays=True, peak=0.4),
    Stage("long real edits", 900, 4, 1024, _LONG_REAL_EDITS, decays=True, peak=0.4),
    Stage("deeper", 3500, 8, 512, _DEEPER, decays=True, peak=0.45, vectors=0.2),
    Stage("deeper, long", 1700, 4, 1024, _LONG_DEEPER, decays=True, peak=0.45, vectors=0.2),
    Stage(
        "deeper, longest", 300, 2, 2048, _LONGEST_REAL_EDITS, decays=True, peak=0.45, vectors=0.2
    ),
    Stage("deeper, long again", 200, 4, 1024, _LONG_DEEPER, decays=True, peak=0.45, vectors=0.2),
    Stage("plain code", 600, 4, 1024, _PLAIN_CODE, decays=True, peak=0.15, vectors=0.2),
    Stage("edits in the end", 450, 4, 1024, _EDITS_IN_THE_END, decays=True, peak=0.16, vectors=0.2),
    Stage("new layers", 500, 8, 512, _ELEVEN, peak=0.5, only=(3, 6, 7)),
    Stage("eleven layers", 2300, 8, 512, _ELEVEN, decays=True, peak=0.2, vectors=0.2),
    Stage("eleven layers, long", 950, 4, 1024, _ELEVEN_LONG, decays=True, peak=0.2, vectors=0.2),
    Stage(
        "eleven layers, longest", 500, 2, 2048, _ELEVEN_LONGEST, decays=True, peak=0.2, vectors=0.2
    ),
    Stage("eleven layers, at last", 150, 4, 1024, _ELEVEN_LONG, decays=True, peak=0.2, vectors=0.2),
)


def total_steps(stages: Sequence[Stage]) -> int:
    """The steps of all stages together."""
    return sum(stage.steps for stage in stages)


def stage_names(stages: Sequence[Stage]) -> list[str]:
    """What the stages are called, in their order."""
    return [stage.name for stage in stages]


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
    for (decays, peak), run in itertools.groupby(stages, key=_course):
        steps = total_steps(tuple(run))
        if step < begin + steps:
            left = max(1.0 - (step - begin) / steps, 0.02) if decays else 1.0
            return warm * peak * left
        begin += steps
    raise ValueError("the step lies beyond the last stage")


def _course(stage: Stage) -> tuple[bool, float]:
    """What neighbouring stages must have in common to share one fall of the rate."""
    return stage.decays, stage.peak
