"""Drawing: how far a draft model's draft pays, and what may be lost by trying.

It chooses how much of a draft to keep and how many tokens to draw behind it, from the seconds that
draws took and the acceptance that the drafter expects. Knows no tokens and no clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import truediv
from typing import Final, NamedTuple

from akunu_py.drafting.base import Prospects
from akunu_py.planning.theory import expected_tokens

PROBE_SHARE: Final = 0.012
"""The share of the time that may go into draws which do not pay, to learn whether they do now. What
the draft model has to read for them counts: if reading a token takes a larger share of a step, and
drawing does not pay, the model is not tried again in this request."""

PROBE_LENGTH: Final = 2
"""How many tokens such a draw has at least: the second shows what comes after a right one."""

TOKEN_PRIOR: Final = 1 / 8
READ_PRIOR: Final = 1 / 128
"""What drawing and reading a token take in single steps of the target before any was timed: little
enough to be tried."""

_MIN_REACH: Final = 0.02
_MANY_READ: Final = 16
_RATE: Final = 0.1
_CLIP: Final = 3.0


class DrawPlan(NamedTuple):
    """How to go on with a draft.

    Attributes:
        kept: how many of its tokens to keep.
        drawn: how many tokens to draw behind these; 0 ends the draft.
        min_reach: the draw ends where acceptance up to there is less likely than this.
    """

    kept: int = 0
    drawn: int = 0
    min_reach: float = 0.0


class Choices(NamedTuple):
    """What there is to choose from.

    Attributes:
        accept_probs: of the draft so far.
        prospects: of what could be drawn behind it.
        rounds: seconds of a forward over a draft of 0, 1, 2 ... tokens; they limit its length.
        step_s: seconds of a pipelined single step.
    """

    accept_probs: Sequence[float]
    prospects: Prospects
    rounds: Sequence[float]
    step_s: float


class _Split(NamedTuple):
    """A draft with `kept` tokens of the present one and `drawn` new ones.

    `tokens` is what its round emits on average, `seconds` what the forward and the draw take, and
    `read_s` what reading takes before.
    """

    kept: int
    drawn: int
    tokens: float
    seconds: float
    read_s: float

    @property
    def speed(self) -> float:
        """Tokens per second, if reading is free."""
        return self.tokens / self.seconds

    def gain_s(self, speed: float) -> float:
        """The time it saves against `speed`, if reading is free."""
        return self.tokens / speed - self.seconds


class DrawPlanner:
    """Begins draws that pay, goes on while the next token pays, and learns what draws take.

    Reading a long context pays only over many rounds. So the first draw waits until what the rounds
    before it would have saved is as much: at worst, twice the time is lost that had to be. Draws
    that are not expected to pay may take `PROBE_SHARE` of the time, with what they have to read.

    Attributes:
        speed: tokens per second of the plan that the present draft was begun with.
    """

    def __init__(self) -> None:
        self.speed = 0.0
        self._token = RunningMean(ignored=1)
        self._read = RunningMean()
        self._saved_s = 0.0
        self._probe_s = 0.0
        self._rounds = 0  # since savings were booked

    def begin_request(self) -> None:
        """Starts a request: what earlier ones saved does not pay for reading its prompt."""
        self._saved_s, self._rounds = 0.0, 0
        self._probe_s = min(self._probe_s, 0.0)

    def begin(self, choices: Choices, *, replayed: bool, pipelined: bool) -> DrawPlan:
        """What to keep of a copied draft and to draw behind it; no draw if none pays or is due.

        Args:
            choices: with a draft of which nothing was drawn.
            replayed: whether the next forward computes tokens again, so it is not pipelined.
            pipelined: whether a step is in flight. Plans are forecasts then, and to draft at all
                costs what a step takes longer if it is not pipelined.
        """
        first, *others = choices.rounds
        refill = max(0.0, first - choices.step_s) if pipelined else 0.0
        choices = choices._replace(rounds=[first, *(seconds + refill for seconds in others)])
        copied = map(truediv, expected_tokens(choices.accept_probs)[1:], choices.rounds[1:])
        fastest = max([1.0 / (first if replayed else choices.step_s), *copied])
        splits = list(self._splits(choices))
        best = max(splits, key=lambda split: split.speed, default=None)
        if best is None:
            return DrawPlan()
        if best.speed > fastest and self._may_read(best, fastest, spend=not pipelined):
            fastest = best.speed
        else:
            longer = (split for split in splits if split.drawn >= PROBE_LENGTH)
            best = max(longer, key=lambda split: split.speed, default=best)
            if best.read_s - best.gain_s(fastest) > self._probe_s:
                return DrawPlan()
            if not pipelined:
                self._probe_s = 0.0  # the next one has to wait, whatever this one leaves
        self.speed = fastest
        return DrawPlan(best.kept, best.drawn, fastest * self._token_s(choices.step_s))

    def go_on(self, choices: Choices, drawn: int) -> DrawPlan:
        """What to keep of a draft and to draw behind it, once the time of a draw is spent.

        The best plan is the one whose tokens are worth most at the speed that the draft was begun
        for, less its time.

        Args:
            choices: with the draft so far.
            drawn: how many of its tokens are those up to the last drawn one.
        """
        speed, token_s = self.speed, self._token_s(choices.step_s)
        plans = [
            (tokens - speed * choices.rounds[kept], DrawPlan(kept))
            for kept, tokens in enumerate(expected_tokens(choices.accept_probs))
        ]
        plans += [
            (speed * (split.gain_s(speed) - split.read_s), DrawPlan(split.kept, split.drawn))
            for split in self._splits(choices, drawn)
        ]
        return max(plans, key=lambda plan: plan[0])[1]._replace(min_reach=speed * token_s)

    def _token_s(self, step_s: float) -> float:
        """Seconds to draw a token; a prior from the target's single step until it is known."""
        return self._token.value or TOKEN_PRIOR * step_s

    def _read_s(self, step_s: float) -> float:
        """Seconds to read a token, likewise."""
        return self._read.value or READ_PRIOR * step_s

    def observe(self, drawn: int, unread: int, seconds: float, step_s: float) -> None:
        """Learns from a draw of `drawn` tokens that had to read `unread` first."""
        if unread > _MANY_READ * drawn:
            self._read.add((seconds - drawn * self._token_s(step_s)) / unread)
        else:
            self._token.add((seconds - unread * self._read_s(step_s)) / drawn)

    def earn(self, seconds: float) -> None:
        """Books the time of a round; a share of it may be spent on probes."""
        self._rounds += 1
        self._probe_s += PROBE_SHARE * seconds

    def _may_read(self, split: _Split, speed: float, *, spend: bool) -> bool:
        """Whether to read what a split needs that pays against `speed`."""
        self._saved_s += self._rounds * split.gain_s(speed)
        self._rounds = 0
        if split.read_s > self._saved_s:
            return False
        if spend:
            self._saved_s -= split.read_s
        return True

    def _splits(self, choices: Choices, begin: int = 0) -> Iterator[_Split]:
        """The ways to keep at least `begin` tokens of a draft and draw 1 token or more behind them.

        Nothing is drawn in place of a token that is as likely to be accepted.
        """
        accept_probs, prospects, rounds, step_s = choices
        # Before any draw was timed, few tokens are drawn.
        ahead = prospects.accept_probs[: None if self._token.value else PROBE_LENGTH]
        token_s, read_s = self._token_s(step_s), self._read_s(step_s)
        length, longest = len(accept_probs), len(rounds) - 1
        reach, emitted = 1.0, expected_tokens(accept_probs)
        for kept in range(min(length, longest - 1) + 1):
            if not ahead or reach < _MIN_REACH:
                return
            if kept >= begin and (kept == length or accept_probs[kept] < ahead[0]):
                # The last one to read is read by the forward that draws the first token.
                unread = max(0, prospects.unread - (length - kept) - 1)
                tokens, drawn_reach = emitted[kept], reach
                for drawn, prob in enumerate(ahead[: longest - kept], start=1):
                    drawn_reach *= prob
                    if drawn_reach < _MIN_REACH:
                        break
                    tokens += drawn_reach
                    seconds = rounds[kept + drawn] + drawn * token_s
                    yield _Split(kept, drawn, tokens, seconds, unread * read_s)
            if kept < length:
                reach *= accept_probs[kept]


class RunningMean:
    """A mean of seconds that follows them; 0 until it is known.

    Of the first two values the smaller counts: one of them may be that of a cold start.

    Args:
        ignored: how many values before these do not count.
    """

    def __init__(self, ignored: int = 0) -> None:
        self.value = 0.0
        self._count = -ignored

    def add(self, value: float) -> None:
        """Adds a value; one that is not positive says nothing."""
        if value <= 0.0:
            return
        self._count += 1
        if self._count <= 2:
            self.value = min(value, self.value or value) if self._count > 0 else 0.0
            return
        value = min(max(value, self.value / _CLIP), self.value * _CLIP)
        self.value += _RATE * (value - self.value)
