"""The decoding loop: propose, plan, forward, verify, roll back, learn, emit.

A round sends the known token and a draft through the target in one forward pass, keeps the drafted
tokens that the target agrees with, and emits one token more. A round without a draft is a plain
decode step; such steps are pipelined like mlx-lm's. `decode` yields the forward passes that a
sequence wants and receives the rounds; `Decoding.advance` computes the passes for one sequence,
`batch.py` for several together. The loop knows neither MLX nor HTTP: it runs both on a model
(`target.py`) and on a known answer (`bench/replay.py`).

Verification is a pure function of a target's choices or distributions and a draft. The emitted
tokens have the target's distribution whatever was drafted, on one condition for drafts with
probabilities: whether token `i` is verified may depend only on the tokens before `i`. If a draft
were cut or declined because of the token itself, the remaining tokens would no longer follow `q`.
`DraftSession.propose` keeps to this.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.rounds import Finish, Round
from akunu_py.sampling.random import draw


@dataclass(frozen=True)
class Limits:
    """Where decoding ends: after `max_tokens` (1 or more), or before an id that ends the text."""

    max_tokens: int
    end_tokens: frozenset[int]


@dataclass(slots=True)
class Forward:
    """The forward pass that a sequence wants next, over `[known, *draft]`.

    `step_gain` is what it gains, in steps, if a single step follows before this pass is read:
    negative if it is better to wait, minus infinity if no step may follow. `forecast` is what would
    be drafted instead; its tokens may be unknown. A batch may cut the draft.
    """

    known: int
    draft: Draft
    step_gain: float
    forecast: Draft = NO_DRAFT


P = TypeVar("P")
"""A forward pass that was submitted and has not been read."""


class Target(Protocol[P]):
    """The forward passes and the cache of one sequence, for the loop to decode with."""

    @property
    def length(self) -> int:
        """How many tokens are in the cache, including those to compute again."""

    @property
    def room(self) -> int:
        """How many more fit."""

    @property
    def replayed(self) -> int:
        """How many tokens the next forward pass computes again, because a rollback went past
        them."""

    @property
    def can_pipeline(self) -> bool:
        """Whether a step may be submitted before the token it begins with is known."""

    def draft_limit(self, tokens_wanted: int) -> int:
        """How many drafted tokens the next forward pass may verify."""

    def submit(self, known: int, draft: Draft) -> P:
        """Starts a forward pass over `[known, *draft]` and returns at once."""

    def submit_step_after(self, pending: P) -> P:
        """Starts a single step that begins with the token `pending` will choose."""

    def read(self, pending: P) -> Round:
        """Waits for a forward pass, verifies its draft, and says what the round emits."""

    def rollback(self, length: int) -> None:
        """Drops everything after the first `length` tokens from the cache."""

    def note_pause(self, seconds: float) -> None:
        """Records how long the caller kept the loop waiting after a round."""


def decode(
    target: Target[P], session: DraftSession, known: int, limits: Limits
) -> Generator[Forward, Round, None]:
    """Decodes one sequence: yields a forward pass and is sent its round, until the text ends. The
    cache holds everything before `known`, the prompt's last token; the session has begun with the
    whole.

    If the step after a pass was submitted before that pass was read (`Round.is_followed`), the pass
    that is yielded next is that step. The caller may cut a round afterwards. If the text ends with
    an end token, the cache may hold that token and one after it; the caller rolls back.
    """
    wanted = limits.max_tokens
    try:
        draft = session.propose(target.draft_limit(wanted), target.length)
        forecast = NO_DRAFT
        while True:
            may_step = wanted > 1 and target.can_pipeline
            gain = session.pipeline_gain(target.length, forecast) if may_step else -inf
            outcome = yield Forward(known, draft, gain, forecast)
            wanted -= len(outcome.tokens)

            # Roll back: the cache keeps the known token and the accepted ones, and the next forward
            # pass computes again what it cannot keep. With a step ahead, nothing was drafted, so
            # nothing is rejected.
            kept = outcome.context + 1 + outcome.accepted
            if not outcome.is_followed and target.length > kept:
                target.rollback(kept)

            # Learn from the whole round, then end the text or propose and plan the next round.
            begun = perf_counter()
            session.learn(outcome)
            _mark_end(outcome, wanted, limits, is_full=not outcome.is_followed and not target.room)
            if outcome.finish is not None:
                outcome.draft_s = perf_counter() - begun
                return
            known = outcome.tokens[-1]
            forecast = session.propose(
                target.draft_limit(wanted),
                target.length,
                replayed=target.replayed,
                pipelined=outcome.is_followed,
            )
            # A proposal made with a step in flight is only a forecast, which stops the pipeline.
            draft, forecast = (NO_DRAFT, forecast) if outcome.is_followed else (forecast, NO_DRAFT)
            outcome.draft_s = perf_counter() - begun
    finally:
        session.end()


def _mark_end(outcome: Round, wanted: int, limits: Limits, *, is_full: bool) -> None:
    outcome.cut_at_end_token(limits.end_tokens)
    if outcome.finish is not None:
        return
    if outcome.grammar_complete:
        outcome.finish = Finish.EOS
    elif wanted <= 0:
        outcome.finish = Finish.LENGTH
    elif is_full:
        outcome.finish = Finish.CONTEXT


class Decoding(Generic[P]):
    """A sequence that decodes: its loop, and the passes submitted but not read, the oldest first;
    two if a step was submitted ahead. `forward` is wanted or was submitted last, None at the end of
    the text; the next round raises an `error` of submitting.
    """

    def __init__(
        self, target: Target[P], session: DraftSession, known: int, limits: Limits
    ) -> None:
        self.target = target
        self.session = session
        self._loop = decode(target, session, known, limits)
        self.forward: Forward | None = next(self._loop)
        self.flights: deque[P] = deque()
        self.error: Exception | None = None
        self._handed_over: float | None = None

    @property
    def wants_forward(self) -> bool:
        """Whether its forward pass still has to be submitted."""
        return not self.flights and self.forward is not None and self.error is None

    @property
    def gain_now(self) -> float:
        """What it gains by a step ahead now; minus infinity if no step is possible."""
        forward = self.forward
        if forward is None or forward.draft or len(self.flights) != 1 or not self.target.room:
            return -inf
        return forward.step_gain

    def advance(self) -> Round:
        """One round, alone. The next forward pass is submitted before it returns, so that the
        device is busy while the caller handles the round."""
        if self._handed_over is not None:
            self.target.note_pause(perf_counter() - self._handed_over)
        self.submit()
        if self.gain_now >= 0.0:
            self.submit_ahead()
        outcome = self.read()
        self.submit()
        self._handed_over = perf_counter()
        return outcome

    def submit(self) -> None:
        """Submits its forward pass, if one is wanted."""
        if self.forward is not None and self.wants_forward:
            try:
                self.flights.append(self.target.submit(self.forward.known, self.forward.draft))
            except Exception as error:  # the round before it can still be returned
                self.error = error

    def submit_ahead(self) -> None:
        """Submits a step after the forward pass in flight."""
        try:
            self.flights.append(self.target.submit_step_after(self.flights[0]))
        except Exception as error:
            self.error = error

    def read(self) -> Round:
        """Reads the oldest forward pass in flight, and lets the loop say what it wants next."""
        if self.error is not None and not self.flights:
            raise self.error
        outcome = self.target.read(self.flights.popleft())
        outcome.is_followed = bool(self.flights)
        try:
            self.forward = self._loop.send(outcome)
        except StopIteration:
            self.forward = None
        self._handed_over = perf_counter()
        return outcome

    def close(self) -> None:
        """Ends the loop, which gives the drafter the last tokens."""
        self._loop.close()


def run_alone(
    target: Target[P], session: DraftSession, known: int, limits: Limits
) -> Iterator[Round]:
    """The rounds of one sequence; the first pass is submitted immediately. See `decode`."""
    decoding = Decoding(target, session, known, limits)
    decoding.submit()
    return _rounds(decoding)


def _rounds(decoding: Decoding[P]) -> Iterator[Round]:
    with closing(decoding):
        while decoding.forward is not None:
            yield decoding.advance()


Rows = npt.NDArray[np.floating[Any]]
"""Distributions over the vocabulary, one per row."""

Uniforms = Callable[[int], tuple[float, float]]
"""For the token after the draft's first `i`: two independent numbers in [0, 1)."""


class Verdict(NamedTuple):
    """How many draft tokens are accepted, and the target's own token after them."""

    accepted: int
    next_token: int


def needs_distributions(draft: Draft, *, greedy: bool) -> bool:
    """Which verifier to use for a draft: `accept_or_resample` if true, else `match_choices`.

    Matching emits what plain decoding would have drawn, so a seed gives the same text whatever was
    drafted. A one-hot draft is accepted equally often both ways, and so is any draft if the target
    is greedy. A draft drawn with its own random numbers is accepted more often by rejection
    sampling; a seed then repeats a text only if the drafts are the same.
    """
    return draft.probabilities is not None and not greedy


def match_choices(choices: Sequence[int], draft_tokens: Sequence[int]) -> Verdict:
    """Accepts the longest prefix of the draft that equals the target's own choices.

    With argmax choices, this is greedy verification. With choices drawn from the target's
    distribution, it is sample-and-match: every emitted token was drawn from the target, and a draft
    token `d` is accepted with probability `p(d)`. `choices` are the target's tokens after the known
    one and after each draft token.
    """
    accepted = 0
    while accepted < len(draft_tokens) and choices[accepted] == draft_tokens[accepted]:
        accepted += 1
    return Verdict(accepted, choices[accepted])


def accept_or_resample(
    target: Rows, draft_tokens: Sequence[int], proposal: Rows, uniforms: Uniforms
) -> Verdict:
    """Accepts `d` with probability `min(1, p(d) / q(d))`; replaces the first rejected token by one
    from the positive part of `p - q`, or, if all are accepted, draws the bonus token from `p`.

    `p` is `target`, `[drafted + 1, vocabulary]`; `q` is `proposal`, `[drafted, vocabulary]`, the
    exact distributions the draft was drawn from, with other `uniforms`. Source: Leviathan, Kalman
    and Matias (2023); Chen et al. (2023).
    """
    for index, token in enumerate(draft_tokens):
        to_accept, to_correct = uniforms(index)
        # Not `>=`, so that tokens with NaN from a broken draft model are rejected.
        if not to_accept * float(proposal[index, token]) < target[index, token]:
            return Verdict(index, draw(_residual(target[index], proposal[index]), to_correct))
    _, to_choose = uniforms(len(draft_tokens))
    return Verdict(len(draft_tokens), draw(target[len(draft_tokens)], to_choose))


def _residual(target: Rows, proposal: Rows) -> Rows:
    rest = np.fmax(target - proposal, 0)
    # Nothing is left only if p equals q up to rounding, or q is NaN; then p itself is right.
    return rest if rest.any() else target
