"""The two ways to decode: autoregressive, one token a forward, and speculative, a draft a forward.

Both take a prefilled cache and the token that comes next into it, and yield one `Round` a forward.
Both keep the device busy: whatever can be submitted is submitted before the loop waits for the
result before it, and before the caller is handed the round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final, cast

import mlx.core as mx
import numpy as np

from akunu_py.draft_trimmer import DraftTrimmer
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.exactness import TieBreaker
from akunu_py.kv_cache import KVCache, PreallocatedKVCache
from akunu_py.model import TargetModel
from akunu_py.planning.planner import Planner, RoundReport
from akunu_py.sampling import TokenChooser
from akunu_py.stats import Finish, Round
from akunu_py.token_buffer import TokenBuffer
from akunu_py.verification import (
    Verdict,
    accept_or_resample,
    match_choices,
    needs_distributions,
)

_FORWARDS_PER_CLEANUP: Final = 256
"""How often MLX is told to give freed buffers back; growing contexts leave ever larger ones."""

_NO_WAIT: Final = 0.02
"""A round of which the loop waited for less than this share found the device already done."""

_SHORT_ERRAND: Final = 0.1
"""A caller that takes less than this share of a round does not falsify its time."""


@dataclass(frozen=True)
class Limits:
    """Where decoding ends.

    Attributes:
        max_tokens: how many tokens to emit at most.
        end_tokens: ids that end the text and are not part of it.
    """

    max_tokens: int
    end_tokens: frozenset[int]


@dataclass(frozen=True)
class _Flight:
    """A forward that was submitted: where it began, what it verifies, and its lazy result.

    The result is the token chosen after each position; or the distribution there, where the draft
    needs that.
    """

    start: int
    draft: Draft
    result: mx.array
    has_distributions: bool
    ties: mx.array | None
    built_s: float
    pipelined: bool


@dataclass(frozen=True)
class _Reading:
    """A forward that was waited for: what it decided, and the forwards it took to be sure."""

    verdict: Verdict
    decided_again: int
    forward_s: float


class _Target:
    """What both loops do with the model: submit a forward, and read what it chose."""

    def __init__(
        self,
        model: TargetModel,
        cache: KVCache,
        chooser: TokenChooser,
        tie_breaker: TieBreaker | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._chooser = chooser
        self._tie_breaker = tie_breaker
        self._forwards = 0

    def submit(
        self, tokens: mx.array, draft: Draft = NO_DRAFT, *, pipelined: bool = False
    ) -> _Flight:
        """Starts a forward over `[known, *draft]` without waiting for it."""
        begun = perf_counter()
        start = self._cache.length
        logits = self._model.forward(tokens, self._cache)
        logits = self._chooser.edit(logits, start + 1, tokens)
        ties = self._tie_breaker.ties_of(logits) if self._tie_breaker else None
        has_distributions = needs_distributions(draft, greedy=self._chooser.sampling.greedy)
        if has_distributions:
            result = self._chooser.distributions(logits)
        else:
            result = self._chooser.choose(logits, start + 1)
        mx.async_eval(result, *([] if ties is None else [ties]))  # type: ignore[no-untyped-call]
        self._forwards += 1
        if self._forwards % _FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        built_s = perf_counter() - begun
        return _Flight(start, draft, result, has_distributions, ties, built_s, pipelined)

    def read(self, flight: _Flight) -> _Reading:
        """Waits for a forward and verifies its draft.

        If that took more forwards, the cache has been rolled back to what stands, and whatever was
        submitted since is void.
        """
        begun = perf_counter()
        drafts, forwards = flight.draft.tokens, 0
        if flight.has_distributions:
            verdict = accept_or_resample(
                np.asarray(flight.result),
                drafts,
                flight.draft.probabilities,
                lambda index: self._chooser.chances(flight.start + 1 + index),
            )
        else:
            verdict = match_choices(cast(list[int], flight.result.tolist()), drafts)
        if self._tie_breaker:
            verdict, forwards = self._tie_breaker.decide(verdict, drafts, flight.ties, flight.start)
        return _Reading(verdict, forwards, flight.built_s + perf_counter() - begun)


class _RoundClock:
    """Times rounds, from the end of one to the end of the next.

    A caller that takes longer over a round than the device over the next one makes that time
    useless; such a round has none.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._errand_s = 0.0

    def caller_took(self, seconds: float) -> None:
        """Books the time that the caller kept the loop waiting."""
        self._errand_s = seconds

    def lap(self, waited_s: float) -> float | None:
        """Ends a round; the seconds since the one before, if they tell what rounds take.

        Args:
            waited_s: the seconds of it that the loop waited for the device.
        """
        now, last = perf_counter(), self._last
        self._last, errand = now, self._errand_s
        if last is None:
            return None
        seconds = now - last
        device_was_slower = waited_s > _NO_WAIT * seconds
        return seconds if device_was_slower or errand < _SHORT_ERRAND * seconds else None


def decode_autoregressive(
    model: TargetModel, cache: KVCache, chooser: TokenChooser, known: int, limits: Limits
) -> Iterator[Round]:
    """One token a forward, pipelined: the next forward runs on the lazy result of the last.

    When the text ends with an end token, the cache holds that token too; the caller rolls back.

    Args:
        model: the target.
        cache: holds everything before `known`, with room for one token at least.
        chooser: how tokens are chosen.
        known: the last token of the prompt.
        limits: where to end; `max_tokens` is 1 or more.
    """
    target = _Target(model, cache, chooser)
    flight = target.submit(mx.array([known]))
    emitted = 0
    while True:
        more = emitted + 1 < limits.max_tokens and cache.room > 0
        ahead = target.submit(flight.result) if more else None
        reading = target.read(flight)
        token = reading.verdict.next_token
        emitted += 1
        done = Round((token,), forward_s=reading.forward_s)
        yield _finished(done, emitted, limits, full=ahead is None)
        if ahead is None or token in limits.end_tokens:
            return
        flight = ahead


def decode_speculative(
    model: TargetModel,
    cache: PreallocatedKVCache,
    chooser: TokenChooser,
    known: int,
    limits: Limits,
    *,
    drafter: Drafter,
    planner: Planner,
    buffer: TokenBuffer,
    trimmer: DraftTrimmer | None = None,
    tie_breaker: TieBreaker | None = None,
) -> Iterator[Round]:
    """A draft a forward: propose, plan, verify, keep what stands, roll the rest back.

    While the drafter has nothing to say, or the planner will not have it verified, this is
    `decode_autoregressive`, pipelining included: a step runs ahead on the lazy result of the one
    before. Once there is a draft to verify, the step in flight is read as it is, and the draft
    that follows it goes into the next forward.

    Args:
        model: the target.
        cache: holds everything before `known`, with room for one token at least.
        chooser: how tokens are chosen.
        known: the last token of the prompt.
        limits: where to end; `max_tokens` is 1 or more.
        drafter: has begun with the whole prompt, `known` included.
        planner: says how much of each draft to verify.
        buffer: carries the tokens of a round in and out, and limits the draft.
        trimmer: cuts drafts where the text would end; None cuts them at end tokens.
        tie_breaker: makes the text exact to the token; None leaves near-ties as they fall.
    """
    target = _Target(model, cache, chooser, tie_breaker)
    trimmer = trimmer or DraftTrimmer(limits.end_tokens)
    clock = _RoundClock()
    planner.begin()
    emitted = 0

    def propose(*, pipelined: bool = False) -> Draft:
        wanted = limits.max_tokens - emitted
        limit = buffer.draft_limit(cache_room=cache.room, tokens_wanted=wanted)
        if limit == 0 or not (draft := trimmer.trim(drafter.propose(limit))):
            return NO_DRAFT
        context = cache.length
        length = planner.choose(draft, context=context, limit=limit, pipelined=pipelined)
        return draft.cut(length) if length else NO_DRAFT

    def submit(token: int, draft: Draft) -> _Flight:
        return target.submit(mx.array(buffer.load(token, draft.tokens)), draft)

    flight = submit(known, propose())
    upcoming = NO_DRAFT
    while True:
        runs_ahead = not (flight.draft or upcoming)
        more = runs_ahead and emitted + 1 < limits.max_tokens and cache.room > 0
        ahead = target.submit(flight.result, pipelined=True) if more else None

        reading = target.read(flight)
        seconds = clock.lap(reading.forward_s - flight.built_s)
        verdict = reading.verdict
        buffer.store([*flight.draft.tokens[: verdict.accepted], verdict.next_token])
        tokens = buffer.emitted(verdict.accepted + 1)
        if reading.decided_again:
            ahead, seconds = None, None  # not what such a round usually takes
        if ahead is None:
            cache.rollback(flight.start + 1 + verdict.accepted)
        emitted += len(tokens)

        begun = perf_counter()
        drafter.feedback(flight.draft, verdict.accepted)
        drafter.extend(tokens)
        trimmer.extend(tokens)
        planner.observe(
            RoundReport(
                flight.draft, tokens, verdict.accepted, flight.start, seconds, flight.pipelined
            )
        )
        upcoming = propose(pipelined=ahead is not None)
        done = Round(
            tuple(tokens),
            drafted=len(flight.draft),
            accepted=verdict.accepted,
            is_bonus=bool(flight.draft) and verdict.is_bonus,
            draft_s=perf_counter() - begun,
            forward_s=reading.forward_s,
            decided_again=reading.decided_again,
        )
        done = _finished(done, emitted, limits, full=ahead is None and cache.room == 0)
        if done.finish is None:
            if ahead is None:
                flight, upcoming = submit(tokens[-1], upcoming), NO_DRAFT
            else:
                flight = ahead
        handed_over = perf_counter()
        yield done
        clock.caller_took(perf_counter() - handed_over)
        if done.finish is not None:
            return


def _finished(done: Round, emitted: int, limits: Limits, *, full: bool) -> Round:
    """The round, cut and marked where the text ends with it.

    The first end token by position decides, whichever of them it is.
    """
    for position, token in enumerate(done.tokens):
        if token in limits.end_tokens:
            return replace(done.cut(position, Finish.EOS), end_token=token)
    if emitted >= limits.max_tokens:
        return replace(done, finish=Finish.LENGTH)
    if full:
        return replace(done, finish=Finish.CONTEXT)
    return done
