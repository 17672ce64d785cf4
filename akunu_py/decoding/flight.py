"""A forward of the target from its submission to its verdict.

Submitting returns at once; reading waits, verifies the draft that was in the forward, and says
which tokens it emits. What is chosen is decided in `sampling/`, what stands in `verification.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, cast

import mlx.core as mx
import numpy as np

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.exactness import TieBreaker
from akunu_py.decoding.verification import (
    Verdict,
    accept_or_resample,
    match_choices,
    needs_distributions,
)
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.model import TargetModel
from akunu_py.sampling.forward_logprobs import ForwardLogprobs
from akunu_py.sampling.logprobs import LogprobRequest, TokenLogprob
from akunu_py.sampling.sampler import Sampler

_FORWARDS_PER_CLEANUP: Final = 256
"""How often MLX is told to give freed buffers back; growing contexts leave ever larger ones."""


@dataclass(frozen=True)
class Flight:
    """A forward that was submitted: where it began, what it verifies, and its lazy result.

    The result is the token chosen after each position; or the distribution there, where the draft
    needs that.
    """

    start: int
    draft: Draft
    result: mx.array
    has_distributions: bool
    ties: mx.array | None
    forward_logprobs: ForwardLogprobs | None
    built_s: float
    pipelined: bool


@dataclass(frozen=True)
class Reading:
    """A forward that was waited for.

    Attributes:
        verdict: how much of its draft stands, and what follows.
        tokens: what it emits: the drafts that stand, then the target's own token.
        decided_again: the single-token forwards that its near-tie took.
        forward_s: seconds spent on building it and waiting for it.
        logprobs: one a token, where they are wanted.
        likeliest: the ids likeliest at each token's position, where they are wanted.
        complete: whether a constraint lets nothing follow.
    """

    verdict: Verdict
    tokens: list[int]
    decided_again: int
    forward_s: float
    logprobs: tuple[TokenLogprob, ...]
    likeliest: Sequence[Sequence[int]]
    complete: bool = False


class Flights:
    """Submits forwards over one cache, and reads them in the order they were submitted.

    Args:
        model: the target.
        cache: what the forwards append to.
        sampler: how tokens are chosen.
        logprob_request: what else is wanted to know.
        tie_breaker: decides near-ties again; None leaves them as they fall.
    """

    def __init__(
        self,
        model: TargetModel,
        cache: KVCache,
        sampler: Sampler,
        logprob_request: LogprobRequest,
        tie_breaker: TieBreaker | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._logprob_request = logprob_request
        self._tie_breaker = tie_breaker
        self._forwards = 0

    def submit(
        self, tokens: mx.array, draft: Draft = NO_DRAFT, *, pipelined: bool = False
    ) -> Flight:
        """Starts a forward over `[known, *draft]` without waiting for it."""
        begun = perf_counter()
        start, sampler = self._cache.length, self._sampler
        raw = self._model.forward(tokens, self._cache)
        if sampler.constraint is not None:
            mx.async_eval(raw)  # type: ignore[no-untyped-call]  # it will wait for the tokens
        logits = sampler.process_logits(raw, start + 1, tokens)
        ties = self._tie_breaker.ties_of(logits) if self._tie_breaker else None
        has_distributions = needs_distributions(draft, greedy=sampler.sampling.greedy)
        if has_distributions:
            result = sampler.distributions(logits)
        else:
            result = sampler.choose(logits, start + 1)
        forward_logprobs = None
        if self._logprob_request != _NO_LOGPROBS:
            choices = None if has_distributions else result
            forward_logprobs = ForwardLogprobs(raw, choices, self._logprob_request)
        wanted = [
            result,
            *(forward_logprobs.lazy if forward_logprobs else ()),
            *([] if ties is None else [ties]),
        ]
        mx.async_eval(*wanted)  # type: ignore[no-untyped-call]
        self._forwards += 1
        if self._forwards % _FORWARDS_PER_CLEANUP == 0:
            mx.clear_cache()
        built_s = perf_counter() - begun
        return Flight(
            start, draft, result, has_distributions, ties, forward_logprobs, built_s, pipelined
        )

    def read(self, flight: Flight) -> Reading:
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
                lambda index: self._sampler.uniforms(flight.start + 1 + index),
            )
        else:
            verdict = match_choices(cast(list[int], flight.result.tolist()), drafts)
        if self._tie_breaker:
            verdict, forwards = self._tie_breaker.decide(verdict, drafts, flight.ties, flight.start)
        tokens = [*drafts[: verdict.accepted], verdict.next_token]
        complete = False
        if (constraint := self._sampler.constraint) is not None:
            constraint.extend(flight.start + 1, tokens)
            complete = constraint.complete
        logprobs: tuple[TokenLogprob, ...] = ()
        likeliest: list[list[int]] = []
        if flight.forward_logprobs is not None:
            logprobs = flight.forward_logprobs.logprobs(tokens)
            likeliest = flight.forward_logprobs.top_ids(len(tokens))
        seconds = flight.built_s + perf_counter() - begun
        return Reading(verdict, tokens, forwards, seconds, logprobs, likeliest, complete)


_NO_LOGPROBS: Final = LogprobRequest()
