"""The curriculum: what is trained on, for how many steps, and at what learning rate.

It grew with the model: courses follow each other, and a later one mends what the weights before it
got wrong. Neighbouring stages that decay from the same `peak` share one fall of the rate. A run can
be lengthened by another course at any time.
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
    change, unless the run began from nothing.
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


def _percent(**shares: int) -> Mapping[str, float]:
    """A mix by the percent of each kind."""
    return {kind: share / 100 for kind, share in shares.items()}


_COPYING = _percent(repeats=60, edits=30, code=10)
_SHORT = _percent(repeats=6, edits=70, code=6, fim=6, questions=10, structured=2)
_EDITS = _percent(repeats=6, edits=58, code=8, fim=14, questions=10, structured=4)
_LONG = _percent(repeats=5, edits=41, long_edits=22, code=6, fim=14, questions=8, structured=4)
_AGAIN = _percent(repeats=3, edits=63, code=2, fim=18, questions=10, structured=4)
_LONG_AGAIN = _percent(
    repeats=2, edits=28, long_edits=34, code=1, fim=20, questions=13, structured=2
)
_LONGEST = _percent(repeats=3, edits=25, long_edits=48, code=6, fim=10, questions=6, structured=2)
_UP_TO_1024 = _percent(
    repeats=1, edits=44, long_edits=26, code=2, fim=16, questions=9, structured=2
)
_UP_TO_2048 = _percent(
    repeats=1, edits=30, long_edits=43, code=2, fim=13, questions=9, structured=2
)
_ONCE_MORE = _percent(edits=56, code=14, fim=18, questions=7, structured=3, repeats=2)
_LONG_ONCE_MORE = _percent(edits=40, long_edits=20, code=12, fim=18, questions=7, structured=3)
_LONGEST_ONCE_MORE = _percent(edits=28, long_edits=40, code=10, fim=14, questions=6, structured=2)
_HOLES = _percent(fim=54, code=14, edits=22, long_edits=4, questions=5, structured=1)
_HOLES_AND_EDITS = _percent(fim=40, code=8, edits=28, long_edits=18, questions=6)
_HOLES_AND_LONGEST = _percent(fim=28, code=6, edits=24, long_edits=36, questions=6)
_FIRST_MESSAGES = _percent(
    short_edits=29, refusals=7, chats=15, edits=28, fim=7, code=9, questions=5
)
_CHATS = _percent(
    short_edits=14, refusals=6, chats=18, edits=22, long_edits=21, fim=7, code=8, questions=4
)
_LONGEST_CHATS = _percent(
    short_edits=14, refusals=4, chats=12, edits=18, long_edits=42, fim=3, code=4, questions=3
)
_EDITS_AT_LAST = _percent(
    short_edits=33, edits=29, chats=11, refusals=5, fim=12, code=7, questions=3
)
_LONG_AT_LAST = _percent(
    short_edits=22, edits=22, long_edits=24, chats=12, refusals=4, fim=9, code=5, questions=2
)
_REAL_EDITS = _percent(edits=44, short_edits=20, fim=15, chats=8, refusals=6, code=6, questions=1)
_LONGEST_REAL_EDITS = _percent(
    edits=20, long_edits=45, short_edits=10, fim=8, chats=9, refusals=4, code=4
)
_LONG_REAL_EDITS = _percent(
    edits=30, long_edits=22, short_edits=15, fim=14, chats=9, refusals=5, code=5
)
_DEEPER = _percent(edits=42, short_edits=17, fim=15, chats=8, refusals=6, code=10, questions=2)
_LONG_DEEPER = _percent(
    edits=26, long_edits=21, short_edits=13, fim=12, chats=9, refusals=6, code=12, questions=1
)
_PLAIN_CODE = _percent(
    code=32, fim=12, edits=18, long_edits=16, short_edits=10, chats=6, refusals=6
)
_EDITS_IN_THE_END = _percent(
    edits=29, long_edits=23, short_edits=18, chats=9, refusals=6, code=8, fim=7
)
_ELEVEN = _percent(
    edits=36, long_edits=14, short_edits=16, chats=10, refusals=5, fim=9, code=9, questions=1
)
_ELEVEN_LONG = _percent(
    edits=28, long_edits=27, short_edits=13, chats=11, refusals=5, fim=7, code=8, questions=1
)
_ELEVEN_LONGEST = _percent(
    edits=22, long_edits=40, short_edits=11, chats=10, refusals=5, fim=5, code=6, questions=1
)
_FINISH = _percent(
    edits=35, long_edits=12, short_edits=20, chats=13, refusals=4, fim=9, code=3, questions=4
)
_LONG_FINISH = _percent(
    edits=27, long_edits=27, short_edits=16, chats=13, refusals=4, fim=7, code=3, questions=3
)
_LONGEST_FINISH = _percent(
    edits=20, long_edits=43, short_edits=12, chats=12, refusals=4, fim=5, code=2, questions=2
)
_FOLLOW_UPS = _percent(chats=34, edits=32, short_edits=17, refusals=6, fim=5, code=3, questions=3)
_FOLLOW_UPS_AGAIN = _percent(
    chats=34, edits=29, long_edits=8, short_edits=17, refusals=3, fim=4, code=3, questions=2
)
_CODE_FIRST = _percent(
    edits=26, long_edits=26, short_edits=16, chats=18, refusals=5, fim=5, code=2, questions=2
)
_CODE_FIRST_AGAIN = _percent(
    chats=40, short_edits=26, edits=16, long_edits=8, refusals=6, fim=2, questions=2
)
_OWN_WORDS = _percent(
    edits=24, long_edits=22, short_edits=22, chats=16, refusals=5, fim=8, code=2, questions=1
)
_WITHOUT_CODE = _percent(
    edits=21, long_edits=17, short_edits=23, chats=24, refusals=6, fim=7, code=1, questions=1
)
_ADDED_LINES = _percent(
    chats=38, short_edits=25, refusals=13, edits=9, long_edits=8, fim=5, questions=1, code=1
)
_EVERYTHING = _percent(
    edits=22, long_edits=16, short_edits=26, chats=22, refusals=9, fim=4, questions=1
)
_MORE_REQUESTS = _percent(
    short_edits=29, chats=20, edits=18, long_edits=11, refusals=10, fim=8, code=3, questions=1
)
_LEAVING_CODE = _percent(
    chats=40, short_edits=20, refusals=17, edits=10, long_edits=6, fim=5, code=2
)
_MORE_WORDS = _percent(
    chats=28, short_edits=24, long_edits=15, refusals=12, edits=12, fim=6, code=3
)
_WIDER = _percent(
    short_edits=24, chats=23, long_edits=19, edits=13, refusals=10, fim=6, code=4, questions=1
)
_FEW_WORDS = _percent(chats=38, refusals=26, short_edits=18, edits=7, long_edits=5, fim=4, code=2)
_LIMITS = _percent(
    chats=26, short_edits=25, refusals=16, long_edits=13, edits=11, fim=5, code=3, questions=1
)
_REMOVALS = _percent(short_edits=32, chats=30, refusals=14, edits=12, long_edits=7, fim=3, code=2)
_AFTER_CODE = _percent(chats=62, refusals=16, short_edits=12, edits=6, long_edits=4)
_QUESTIONS = _percent(repeats=2, edits=46, code=2, fim=12, questions=36, structured=2)
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
    Stage("finish", 1200, 8, 512, _FINISH, decays=True, peak=0.25, vectors=0.2),
    Stage("finish, long", 700, 4, 1024, _LONG_FINISH, decays=True, peak=0.25, vectors=0.2),
    Stage("finish, longest", 50, 2, 2048, _LONGEST_FINISH, decays=True, peak=0.25, vectors=0.2),
    Stage("follow-ups", 220, 8, 512, _FOLLOW_UPS, decays=True, peak=0.1, vectors=0.2),
    Stage("follow-ups again", 200, 8, 512, _FOLLOW_UPS_AGAIN, decays=True, peak=0.09, vectors=0.2),
    Stage("larger batches", 480, 8, 1024, _LONG_FINISH, decays=True, peak=0.12, vectors=0.2),
    Stage("code first", 600, 8, 1024, _CODE_FIRST, decays=True, peak=0.12, vectors=0.2),
    Stage("code first again", 100, 8, 1024, _CODE_FIRST_AGAIN, decays=True, peak=0.07, vectors=0.2),
    Stage("own words", 1100, 8, 1024, _OWN_WORDS, decays=True, peak=0.14, vectors=0.2),
    Stage("without code", 1000, 8, 1024, _WITHOUT_CODE, decays=True, peak=0.12, vectors=0.2),
    Stage("added lines", 220, 8, 1024, _ADDED_LINES, decays=True, peak=0.08, vectors=0.2),
    Stage("any hint", 1200, 8, 1024, _EVERYTHING, decays=True, peak=0.14, vectors=0.2),
    Stage("more requests", 1150, 8, 1024, _MORE_REQUESTS, decays=True, peak=0.16, vectors=0.2),
    Stage("leaving code", 130, 8, 1024, _LEAVING_CODE, decays=True, peak=0.06, vectors=0.2),
    Stage("more words", 1400, 8, 1024, _MORE_WORDS, decays=True, peak=0.15, vectors=0.2),
    Stage("wider", 9823, 16, 2048, _WIDER, decays=True, peak=0.5, vectors=0.4),
    Stage("few words", 150, 4, 1024, _FEW_WORDS, decays=True, peak=0.05, vectors=0.2),
    Stage("limits", 8092, 16, 2048, _LIMITS, decays=True, peak=0.4, vectors=0.4),
    Stage("removals", 1985, 16, 2048, _REMOVALS, decays=True, peak=0.2, vectors=0.4),
    Stage("after code", 380, 4, 1024, _AFTER_CODE, decays=True, peak=0.06, vectors=0.2),
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
