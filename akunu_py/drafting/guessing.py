"""The networks that guess token by token: the model's own head, and a second, smaller model.

Both draw with the target's own random numbers. So they draw the same token where their distribution
equals the target's, and mostly where it is close: for a total variation of `d`, with a probability
of at least `(1 - d) / (1 + d)`, where rejection sampling would reach `1 - d`. In return, a guess is
verified by matching, and the text does not depend on it. Source: Daliri, Musco and Suresh,
"Coupling without Communication and Drafter-Invariant Speculative Decoding" (2024).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import mlx.core as mx

from akunu_py.cache.kv_cache import HeadPairs
from akunu_py.drafting.chain import Guess, Guesser
from akunu_py.drafting.draft_model import DraftModel
from akunu_py.model.head import Head
from akunu_py.sampling.sampler import Sampler
from akunu_py.tokens import Origin


class GuessSampler:
    """Chooses guesses as a request's sampler chooses tokens. `tokens`: the prompt and the emitted
    ones.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampling = replace(sampler.sampling, seed=sampler.seed)
        self._xtc = sampler.xtc
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self.tokens, self._prompt_length = list(prompt), len(prompt)
        self._guessed = 0

    def start(self) -> None:
        """Begins a draft."""
        generated = len(self.tokens) - self._prompt_length
        self._own = Sampler(self._sampling, self.tokens, generated=generated, xtc=self._xtc)
        self._guessed, self._last = 0, self.tokens[-1]

    def guess(self, logits: mx.array) -> Guess:
        """The guess for lazy logits `[1, vocabulary]` of the next position."""
        position = len(self.tokens) + self._guessed
        logits = self._own.process_logits(logits, position, mx.array([self._last]))
        token = self._own.choose(logits, position)
        surplus = (
            mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, token[:, None], -1)[:, 0]
        )
        prob = mx.exp(-surplus)
        mx.eval(token, prob)
        self._guessed, self._last = self._guessed + 1, cast(int, token.item())
        return Guess(self._last, cast(float, prob.item()))


class HeadGuesser(Guesser):
    """Guesses with the model's own head. If it has several steps, only the first one guesses."""

    name = Origin.HEAD

    def __init__(self, head: Head, sampler: Sampler) -> None:
        self._head = head
        self._sampler = GuessSampler(sampler)
        self._cache: HeadPairs | None = None

    def begin(self, prompt: Sequence[int], head_cache: HeadPairs | None = None) -> None:
        self._sampler.begin(prompt)
        self._cache = head_cache
        if head_cache is not None:
            head_cache.complete(prompt[-1])

    def extend(self, tokens: Sequence[int]) -> None:
        self._sampler.tokens.extend(tokens)

    def first(self, limit: int) -> Guess | None:
        if self._cache is None or (states := self._cache.read()) is None:
            return None
        self._length = self._cache.pairs.length
        self._states = states
        self._sampler.start()
        return self._sampler.guess(self._head.logits(states))

    def after(self, token: int) -> Guess | None:
        cache = self._cache
        if not self._head.repeats or cache is None or not cache.has_room(1):
            return None
        self._states = self._head(mx.array([token]), self._states, cache.pairs)
        return self._sampler.guess(self._head.logits(self._states))

    def stop(self) -> None:
        if self._cache is not None:
            self._cache.pairs.rollback(self._length)


class DraftModelGuesser(Guesser):
    """Guesses with a second model, which it has borrowed."""

    name = Origin.MODEL

    def __init__(self, source: DraftModel, sampler: Sampler) -> None:
        self._source = source
        self._sampler = GuessSampler(sampler)
        self._guesses: list[int] = []

    def begin(self, prompt: Sequence[int], head_cache: HeadPairs | None = None) -> None:
        self._sampler.begin(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        self._sampler.tokens.extend(tokens)

    def first(self, limit: int) -> Guess | None:
        context, source = self._sampler.tokens, self._source
        self._most = min(limit, source.model.context_length - len(context))
        if self._most <= 0 or not context:
            return None
        logits = source.advance(context, self._most)
        if logits is None:
            return None
        self._sampler.start()
        guess = self._sampler.guess(logits)
        self._guesses = [guess.token]
        return guess

    def after(self, token: int) -> Guess | None:
        if len(self._guesses) >= self._most:
            return None
        guess = self._sampler.guess(self._source.append(mx.array([token])))
        self._guesses.append(guess.token)
        return guess

    def stop(self) -> None:
        self._source.hold(self._guesses[:-1])
        self._guesses = []
