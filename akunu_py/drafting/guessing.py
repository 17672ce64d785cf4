"""The networks that guess token by token: the model's own head, and a second, smaller model, with
the same tokenizer and its own cache, which is rolled back to the emitted tokens and reused.

Both draw with the target's own random numbers. So they draw the same token where their distribution
equals the target's, and mostly where it is close: for a total variation of `d`, with a probability
of at least `(1 - d) / (1 + d)`, where rejection sampling would reach `1 - d`. In return, a guess is
verified by matching, and the text does not depend on it. Source: Daliri, Musco and Suresh,
"Coupling without Communication and Drafter-Invariant Speculative Decoding" (2024).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from time import perf_counter
from typing import Final, cast

import mlx.core as mx

from akunu_py.cache.kv_cache import HeadPairs
from akunu_py.cache.model_cache import no_rollback_reason
from akunu_py.drafting.chain import Guess, Guesser
from akunu_py.errors import InvalidRequestError
from akunu_py.model.head import Head
from akunu_py.model.target_model import PREFILL_STEP, TargetModel
from akunu_py.sampling.sampler import Sampler
from akunu_py.tokens import Origin, common_prefix_length

_FIRST_CAPACITY: Final = 2048
_LEAST_READ: Final = 32
"""The fewest tokens whose time says how long reading takes."""


class DraftModel:
    """A model to draft with, and a cache that knows which tokens it holds. Callers of `lend` set
    `in_use` to False when they are done. A model with another tokenizer, or whose cache cannot be
    rolled back, is refused.
    """

    def __init__(self, model: TargetModel, target: TargetModel) -> None:
        if reason := _why_no_match(model, target):
            raise InvalidRequestError(f"{model.name} cannot draft for {target.name}: {reason}.")
        cache = model.make_cache(min(_FIRST_CAPACITY, model.context_length))
        if reason := no_rollback_reason(cache):
            raise InvalidRequestError(
                f"{model.name} cannot draft: {reason} Choose another draft model."
            )
        self.model = model
        self.vocabulary = target.vocabulary_size
        self.in_use = False
        self.token_s = 0.0  # to read a token of a prompt; 0 if that is unknown
        self._cache = cache
        self._held: list[int] = []
        self._others: list[DraftModel] = []

    @property
    def nbytes(self) -> int:
        return sum(one._cache.nbytes for one in (self, *self._others))

    def clear(self) -> None:
        self._others = [one for one in self._others if one.in_use]
        if not self.in_use:
            self._empty()

    def lend(self, prompt: Sequence[int]) -> "DraftModel":
        """Itself, or if another request is using it, one like it with its own cache."""
        free = [one for one in (self, *self._others) if not one.in_use]
        if free:
            lent = max(free, key=lambda one: one.shared(prompt))
        else:
            lent = copy(self)
            lent._others = []
            lent._empty()
            self._others.append(lent)
        lent.in_use = True
        return lent

    def shared(self, tokens: Sequence[int]) -> int:
        return common_prefix_length(self._held, tokens)

    def advance(self, tokens: Sequence[int], num_draft_tokens: int) -> mx.array | None:
        """Brings the cache up to a context of 1 token or more, with room for a draft; returns the
        lazy logits after it, `[1, target's vocabulary]`. For a long context, it computes one step
        of a prefill and returns None, so that other requests and a cancel need not wait."""
        with self._empty_if_interrupted():
            kept = min(self.shared(tokens), len(tokens) - 1)
            kept -= self._cache.rollback(kept)
            capacity = self._cache.capacity
            while capacity < len(tokens) + num_draft_tokens:
                capacity *= 2
            if capacity > self._cache.capacity:
                self._cache.grow(min(capacity, self.model.context_length))
            missing = self._known(tokens[kept:-1])
            begun, read = perf_counter(), missing[:PREFILL_STEP]
            self.model.prefill(read, self._cache)
            if len(read) >= _LEAST_READ:
                self.token_s = (perf_counter() - begun) / len(read)
            if len(missing) > PREFILL_STEP:
                self._held = list(tokens[: self._cache.length])
                return None
            self._cache.mark()  # draft tokens are rolled back to here
            self._held = list(tokens)
            return self.append(mx.array(self._known(tokens[-1:])))

    def append(self, tokens: mx.array) -> mx.array:
        """Appends tokens `[n]`, which may be lazy; returns the lazy logits after the last one."""
        with self._empty_if_interrupted():
            logits = self.model.forward(tokens, self._cache)[-1:, : self.vocabulary]
        missing = self.vocabulary - logits.shape[-1]
        return mx.pad(logits, [(0, 0), (0, missing)], constant_values=-mx.inf)

    def hold(self, draft_tokens: Sequence[int]) -> None:
        self._held.extend(draft_tokens)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, with a replacement for each that only the target has: MLX does not check ids,
        and would read beyond the embeddings."""
        last = self.model.vocabulary_size - 1
        return [min(token, last) for token in tokens]

    @contextmanager
    def _empty_if_interrupted(self) -> Iterator[None]:
        """Forgets everything if a forward pass ends early, because its layers may then differ."""
        try:
            yield
        except BaseException:
            self._empty()
            raise

    def _empty(self) -> None:
        self._cache = self.model.make_cache(min(_FIRST_CAPACITY, self.model.context_length))
        self._held = []


def _why_no_match(draft: TargetModel, target: TargetModel) -> str | None:
    """Why two models do not share a vocabulary; None if they do.

    Special tokens are compared too, but not which of them end a text: the target decides where an
    answer ends, so a draft model with other end tokens can only miss the last token.
    """
    theirs, ours = (model.tokenizer.wrapped.get_vocab() for model in (draft, target))
    if len(theirs) != len(ours):
        return f"its tokenizer has {len(theirs)} tokens, not {len(ours)}"
    for token, number in ours.items():
        if theirs.get(token) != number:
            other = theirs.get(token, "nothing")
            return f"its tokenizer reads {token!r} as {other}, not as {number}"
    return None


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
        prob = mx.nan_to_num(mx.exp(-surplus))  # NaN if logits are infinite
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

    @property
    def is_able(self) -> bool:
        return self._cache is not None

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

    @property
    def is_able(self) -> bool:
        return 0 < len(self._sampler.tokens) < self._source.model.context_length

    @property
    def reading_s(self) -> float:
        tokens, source = self._sampler.tokens, self._source
        return source.token_s * (len(tokens) - source.shared(tokens))

    def first(self, limit: int) -> Guess | None:
        if not self.is_able:
            return None
        context, source = self._sampler.tokens, self._source
        self._most = min(limit, source.model.context_length - len(context))
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
