"""Decoding without a model or a clock: random numbers decide which draft tokens are accepted.

They are drawn once per position, so every policy meets the same text. Time is what a cost curve
says, with single steps pipelined as in the decoding loop.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner, Situation
from akunu_py.planning.theory import expected_tokens
from akunu_py.rounds import Round

WRONG = -1
"""The token of a draft where it is wrong; the right tokens count up."""

CONTEXT = 256


@dataclass(frozen=True)
class Stretch:
    """A part of a text that is equally predictable throughout.

    Attributes:
        tokens: how long it is.
        acceptance: how likely a draft token is to be accepted; None if nothing is drafted.
        match_length: of the drafts there.
    """

    tokens: int
    acceptance: float | None
    match_length: int = 3


class Text:
    """Stretches in a row.

    Args:
        stretches: what it consists of.
        seed: of the random numbers.
        has_probs: whether drafts carry their true probabilities.
    """

    def __init__(
        self, stretches: Sequence[Stretch], *, seed: int = 0, has_probs: bool = True
    ) -> None:
        draw = Random(seed)
        self._stretches = [stretch for stretch in stretches for _ in range(stretch.tokens)]
        self._stands = [
            stretch.acceptance is not None and draw.random() < stretch.acceptance
            for stretch in self._stretches
        ]
        self._has_probs = has_probs

    def __len__(self) -> int:
        return len(self._stretches)

    def draft(self, position: int, limit: int) -> Draft:
        """The draft at a position: at most to the end of the stretch."""
        stretch = self._stretches[position]
        if stretch.acceptance is None:
            return NO_DRAFT
        end = position
        while end < min(position + limit, len(self)) and self._stretches[end] == stretch:
            end += 1
        tokens = [at if self._stands[at] else WRONG for at in range(position, end)]
        expected = (stretch.acceptance,) * len(tokens) if self._has_probs else ()
        return Draft(tuple(tokens), "coins", stretch.match_length, None, expected)


class Simulated(NamedTuple):
    """A round of a simulation.

    `start` is the position of its first token, `seconds` what it took.
    """

    start: int
    drafted: int
    seconds: float
    is_probe: bool


def seconds_for(text: Text, curve: CostCurve, planner: Planner, *, slower: float = 1.0) -> float:
    """How long a text takes with a planner; the arguments are those of `simulate`."""
    return sum(done.seconds for done in simulate(text, curve, planner, slower=slower))


def simulate(
    text: Text,
    curve: CostCurve,
    planner: Planner,
    *,
    context: int = CONTEXT,
    slower: float = 1.0,
    noise: float = 0.0,
    hiccups: float = 0.0,
    busy_s: float = 0.0,
) -> Iterator[Simulated]:
    """The rounds that emit a text with a planner, which observes each of them.

    Args:
        text: the text to emit.
        curve: the true costs.
        planner: chooses the lengths.
        context: tokens in the cache, throughout.
        slower: how many times as long as the curve says rounds with drafts take.
        noise: the standard deviation of the logarithms of the times that the planner observes.
        hiccups: how often such a time is three times as long, because the machine does something
            else; that of a pipelined step may be as much shorter.
        busy_s: for so many seconds all takes three times as long, then not, in turns.
    """
    draw = Random(1)
    rounds, step = curve.verify_table(context, MAX_PLANNED_TOKENS + 1), curve.decode_s(context)
    planner.begin()
    position, now = 0, 0.0
    pipelined = stops = False
    draft = NO_DRAFT

    def chosen(*, ahead: bool) -> Draft:
        limit = min(MAX_PLANNED_TOKENS, len(text) - position)
        should_propose = limit > 0 and planner.should_propose()
        proposed = text.draft(position, limit) if should_propose else NO_DRAFT
        if not proposed:
            return NO_DRAFT
        length = planner.choose(proposed, Situation(context, limit, pipelined=ahead))
        assert 0 <= length <= limit
        return proposed.cut(length)

    while position < len(text):
        accepted = 0
        if draft:
            seconds = slower * rounds[len(draft)]
            while accepted < len(draft) and draft.tokens[accepted] != WRONG:
                accepted += 1
        else:
            seconds = step if pipelined else rounds[0]
        if busy_s and int(now / busy_s) % 2:
            seconds *= 3.0
        now += seconds
        tokens = range(position, min(position + accepted + 1, len(text)))
        is_probe = isinstance(planner, DraftPlanner) and planner.is_probe
        yield Simulated(position, len(draft), seconds, is_probe)
        observed = seconds * math.exp(draw.gauss(0.0, noise))
        if draw.random() < hiccups:
            observed *= draw.choice((3.0, 1 / 3)) if pipelined else 3.0
        planner.observe(Round(tuple(tokens), draft, accepted, context, pipelined, observed))
        position += len(tokens)
        if draft:
            draft, pipelined = chosen(ahead=False), False
        elif (pipelined and stops) or planner.pipeline_gain(context) < 0:
            draft, pipelined, stops = chosen(ahead=False), False, False
        else:
            # A step is already in flight; a draft that is wanted now waits for it.
            stops, pipelined = bool(chosen(ahead=True)), True


def regret_s(rounds: Sequence[Simulated], text: Text, curve: CostCurve, context: int) -> float:
    """The seconds that probes took longer than their tokens would have, at the best length."""
    costs, step = curve.verify_table(context, MAX_PLANNED_TOKENS + 1), curve.decode_s(context)
    lost = 0.0
    for done in rounds:
        if done.is_probe:
            tokens = expected_tokens(text.draft(done.start, MAX_PLANNED_TOKENS).accept_probs)
            best = max(
                1.0 / step, *(made / cost for made, cost in zip(tokens, costs, strict=False))
            )
            lost += max(0.0, done.seconds - tokens[done.drafted] / best)
    return lost


class Oracle(FixedPlanner):
    """Knows the acceptance of every draft and the costs; plans one round ahead."""

    def __init__(self, curve: CostCurve) -> None:
        super().__init__(MAX_PLANNED_TOKENS)
        self._curve = curve

    def choose(self, draft: Draft, now: Situation) -> int:
        tokens = expected_tokens(draft.accept_probs[: now.limit])
        speeds = [1 / self._curve.decode_s(now.context)]
        speeds += [
            tokens[drafts] / self._curve.verify_s(1 + drafts, now.context)
            for drafts in range(1, min(now.limit, len(draft)) + 1)
        ]
        return speeds.index(max(speeds))
