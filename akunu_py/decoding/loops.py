"""The two ways to decode: autoregressive, one token a forward, and speculative, a draft a forward.

Both take a prefilled cache and the token that comes next into it, and yield one `Round` a forward.
Both keep the device busy: whatever can be submitted is submitted before the loop waits for the
result before it, and before the caller is handed the round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import mlx.core as mx

from akunu_py.cache.kv_cache import KVCache, PreallocatedKVCache
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.flight import Flight, Flights
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.model import TargetModel
from akunu_py.planning.live_costs import RoundClock
from akunu_py.planning.planner import RoundReport
from akunu_py.sampling.forward_logprobs import LogprobRequest
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Finish, Round


@dataclass(frozen=True)
class Limits:
    """Where decoding ends.

    Attributes:
        max_tokens: how many tokens to emit at most.
        end_tokens: ids that end the text and are not part of it.
    """

    max_tokens: int
    end_tokens: frozenset[int]


def decode_autoregressive(
    model: TargetModel,
    cache: KVCache,
    sampler: Sampler,
    known: int,
    limits: Limits,
    *,
    logprobs: int | None = None,
) -> Iterator[Round]:
    """One token a forward, pipelined: the next forward runs on the lazy result of the last.

    When the text ends with an end token, the cache holds that token too; the caller rolls back.

    Args:
        model: the target.
        cache: holds everything before `known`, with room for one token at least.
        sampler: how tokens are chosen.
        known: the last token of the prompt.
        limits: where to end; `max_tokens` is 1 or more.
        logprobs: alternatives to report with each token's log-probability; None reports nothing.
    """
    flights = Flights(model, cache, sampler, LogprobRequest(logprobs))
    flight = flights.submit(mx.array([known]))
    emitted = 0
    while True:
        more = emitted + 1 < limits.max_tokens and cache.room > 0
        ahead = flights.submit(flight.result) if more and not sampler.blocks else None
        reading = flights.read(flight)
        (token,) = reading.tokens
        emitted += 1
        done = Round((token,), forward_s=reading.forward_s, logprobs=reading.logprobs)
        done = _finished(done, emitted, limits, complete=reading.complete, full=not more)
        if done.finish is None:
            flight = flights.submit(mx.array([token])) if ahead is None else ahead
        yield done
        if done.finish is not None:
            return


def decode_speculative(
    model: TargetModel,
    cache: PreallocatedKVCache,
    sampler: Sampler,
    known: int,
    limits: Limits,
    *,
    draft_session: DraftSession,
    logprobs: int | None = None,
) -> Iterator[Round]:
    """A draft a forward: propose, plan, verify, keep what stands, roll the rest back.

    While the drafter has nothing to say, or the planner will not have it verified, this is
    `decode_autoregressive`, pipelining included: a step runs ahead on the lazy result of the one
    before, unless the planner would rather wait for what can be drafted after it. Once there is a
    draft to verify, the step in flight is read as it is, and the draft that follows it goes into
    the next forward.

    Args:
        model: the target.
        cache: holds everything before `known`, with room for one token at least.
        sampler: how tokens are chosen.
        known: the last token of the prompt.
        limits: where to end; `max_tokens` is 1 or more.
        draft_session: has begun with the whole prompt, `known` included.
        logprobs: alternatives to report with each token's log-probability; None reports nothing.
    """
    logprob_request = LogprobRequest(logprobs, draft_session.alternatives_wanted)
    flights = Flights(model, cache, sampler, logprob_request, draft_session.tie_breaker)
    buffer, clock = draft_session.buffer, RoundClock()
    emitted = 0

    def submit(token: int, draft: Draft) -> Flight:
        return flights.submit(mx.array(buffer.load(token, draft.tokens)), draft)

    flight = submit(known, draft_session.propose(cache, limits.max_tokens))
    upcoming = NO_DRAFT
    while True:
        single = not (flight.draft or upcoming or sampler.blocks)
        more = single and emitted + 1 < limits.max_tokens and cache.room > 0
        should_pipeline = more and draft_session.planner.should_pipeline(cache.length)
        ahead = flights.submit(flight.result, pipelined=True) if should_pipeline else None

        reading = flights.read(flight)
        seconds = clock.lap(reading.forward_s - flight.built_s)
        if reading.decided_again:
            seconds = ahead = None
        verdict = reading.verdict
        buffer.store(reading.tokens)
        tokens = buffer.emitted(verdict.accepted + 1)
        if ahead is None:
            cache.rollback(flight.start + 1 + verdict.accepted)
        emitted += len(tokens)

        begun = perf_counter()
        report = RoundReport(
            flight.draft, tokens, verdict.accepted, flight.start, seconds, flight.pipelined
        )
        draft_session.learn(report, reading.likeliest)
        wanted = limits.max_tokens - emitted
        upcoming = draft_session.propose(cache, wanted, pipelined=ahead is not None)
        done = Round(
            tuple(tokens),
            drafted=len(flight.draft),
            accepted=verdict.accepted,
            is_bonus=bool(flight.draft) and verdict.is_bonus,
            draft_s=perf_counter() - begun,
            forward_s=reading.forward_s,
            decided_again=reading.decided_again,
            logprobs=reading.logprobs,
        )
        full = ahead is None and cache.room == 0
        done = _finished(done, emitted, limits, complete=reading.complete, full=full)
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


def _finished(done: Round, emitted: int, limits: Limits, *, complete: bool, full: bool) -> Round:
    """The round, cut and marked where the text ends with it.

    The first end token by position decides, whichever of them it is.
    """
    for position, token in enumerate(done.tokens):
        if token in limits.end_tokens:
            end_logprob = done.logprobs[position] if done.logprobs else None
            ended = done.cut(position, Finish.EOS)
            return replace(ended, end_token=token, end_logprob=end_logprob)
    if complete:
        return replace(done, finish=Finish.EOS)
    if emitted >= limits.max_tokens:
        return replace(done, finish=Finish.LENGTH)
    if full:
        return replace(done, finish=Finish.CONTEXT)
    return done
