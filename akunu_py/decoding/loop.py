"""The decoding loop: propose, plan, forward, verify, roll back, learn, hand over.

A round sends the known token and a draft through the target in one forward, keeps the drafted
tokens that the target agrees with, and emits one token more. A round without a draft is a plain
decode step; such steps are pipelined as mlx-lm's are. The loop knows neither MLX nor HTTP: it runs
on a model (`target.py`) and on a known answer (`bench/replay.py`) alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Protocol, TypeVar

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.round import Finish, Round


@dataclass(frozen=True)
class Limits:
    """Where decoding ends: after `max_tokens`, 1 or more, or before an id that ends the text."""

    max_tokens: int
    end_tokens: frozenset[int]


class Pending(Protocol):
    """A forward that was submitted and has not been read.

    `step_gain` is what it gains to submit a single step before this is read, in steps: negative if
    it is better to wait, minus infinity if no step may follow. The loop sets it early, because the
    sequences of a batch decide together.
    """

    step_gain: float

    @property
    def draft(self) -> Draft:
        """What it verifies."""


P = TypeVar("P", bound=Pending)


class Target(Protocol[P]):
    """What the loop decodes with: the forwards and the cache of one sequence."""

    @property
    def length(self) -> int:
        """How many tokens are in the cache, those to compute again included."""

    @property
    def room(self) -> int:
        """How many more fit."""

    @property
    def replayed(self) -> int:
        """How many tokens the next forward computes again, because a rollback went past them."""

    @property
    def can_pipeline(self) -> bool:
        """Whether a step may be submitted before the token it begins with is known."""

    def draft_limit(self, tokens_wanted: int) -> int:
        """How many drafted tokens the next forward may verify."""

    def submit(self, known: int, draft: Draft) -> P:
        """Starts a forward over `[known, *draft]` and returns at once."""

    def submit_step_after(self, pending: P) -> P | None:
        """Starts a single step that begins with the token `pending` will choose; None if it is
        better to wait for that, by its `step_gain`."""

    def read(self, pending: P) -> Round:
        """Waits for a forward, verifies its draft, and says what the round emits."""

    def rollback(self, length: int) -> None:
        """Drops what the cache holds after its first `length` tokens."""

    def note_pause(self, seconds: float) -> None:
        """Books time for which the caller kept the loop waiting after a round."""


def decode(target: Target[P], session: DraftSession, known: int, limits: Limits) -> Iterator[Round]:
    """Decodes one sequence, one round per iteration, until the text ends.

    The first forward is submitted at once. Then the loop is rotated: an iteration reads one forward
    and submits the next. The caller may cut a round while it has it, and may stop iterating at any
    time. If the text ends with an end token, the cache may hold that token and one after it; the
    caller rolls back.

    Args:
        target: its cache holds everything before `known` and has room for at least 1 token.
        session: has begun with the whole prompt, `known` included.
        known: the last token of the prompt.
        limits: where to end.
    """
    draft = session.propose(target.draft_limit(limits.max_tokens), target.length)
    pending = target.submit(known, draft)
    pending.step_gain = _step_gain(target, session, limits.max_tokens, NO_DRAFT)
    return _rounds(target, session, pending, limits)


def _rounds(
    target: Target[P], session: DraftSession, pending: P, limits: Limits
) -> Iterator[Round]:
    emitted = 0
    try:
        while True:
            # Forward: without a draft, the device may get the next step before this one is read.
            may_step = pending.step_gain > -inf and not pending.draft and target.room > 0
            ahead = target.submit_step_after(pending) if may_step else None

            # Verify.
            outcome = target.read(pending)
            emitted += len(outcome.tokens)

            # Roll back: the cache keeps the known token and the accepted ones; what it cannot keep,
            # the next forward computes again. A step ahead means that nothing was drafted, so
            # nothing is rejected.
            kept = outcome.context + 1 + outcome.accepted
            if ahead is None and target.length > kept:
                target.rollback(kept)

            # Learn from the whole round, then end the text or propose and plan the next round.
            begun = perf_counter()
            session.learn(outcome)
            _mark_end(outcome, emitted, limits, is_full=ahead is None and target.room == 0)
            if outcome.finish is None:
                limit = target.draft_limit(limits.max_tokens - emitted)
                draft = session.propose(
                    limit, target.length, replayed=target.replayed, pipelined=ahead is not None
                )
            outcome.draft_s = perf_counter() - begun

            # Keep the device busy while the caller has the round. What was proposed with a step in
            # flight is only a forecast: it stops the pipeline.
            if outcome.finish is None:
                forecast = draft if ahead else NO_DRAFT
                pending = ahead or target.submit(outcome.tokens[-1], draft)
                wanted = limits.max_tokens - emitted
                pending.step_gain = _step_gain(target, session, wanted, forecast)

            # Hand over.
            handed_over = perf_counter()
            yield outcome
            target.note_pause(perf_counter() - handed_over)
            if outcome.finish is not None:
                return
    finally:
        session.end()


def _step_gain(target: Target[P], session: DraftSession, wanted: int, forecast: Draft) -> float:
    """What a step gains that is submitted before the next of `wanted` tokens is read."""
    if wanted <= 1 or not target.can_pipeline:
        return -inf
    return session.pipeline_gain(target.length, forecast)


def _mark_end(outcome: Round, emitted: int, limits: Limits, *, is_full: bool) -> None:
    """Says why the text ends with this round, if it does; an end token decides before the rest."""
    outcome.cut_at_end_token(limits.end_tokens)
    if outcome.finish is not None:
        return
    if outcome.grammar_complete:
        outcome.finish = Finish.EOS
    elif emitted >= limits.max_tokens:
        outcome.finish = Finish.LENGTH
    elif is_full:
        outcome.finish = Finish.CONTEXT
