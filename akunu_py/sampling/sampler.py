"""Sampler: from logits to the distribution that a request asked for, and from that to tokens.

A choice depends only on the logits, the seed and the token's position. So a sampled text does not
depend on how many tokens a forward pass verified, and a draft token is accepted exactly when plain
decoding would have drawn it: sample-and-match.
"""

import secrets
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import Final

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import make_logits_processors

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling
from akunu_py.sampling.constraint import Constraint
from akunu_py.sampling.constraint_factory import ConstraintFactory
from akunu_py.sampling.processors import (
    InfillFilter,
    XTCFilter,
    filtered,
    make_penalties,
    waits_for_nucleus,
)
from akunu_py.sampling.random import GOLDEN_GAMMA, mix64, uniform
from akunu_py.text.tokenizer import Tokenizer

_TO_ACCEPT: Final = 1
_TO_CORRECT: Final = 2
"""Streams of random numbers; drafters of your own may use stream 0, and XTC uses stream 3."""


class Sampler:
    """Chooses one token for each row of logits, repeatably. Penalties count the tokens of `prompt`,
    whose last `generated` were generated; XTC keeps `never_excluded`, and draft models share the
    target's. If `pipelined`, a forward pass may begin before the last one is read.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        *,
        generated: int = 0,
        constraint: Constraint | None = None,
        infill: InfillFilter | None = None,
        never_excluded: Collection[int] = (),
        xtc: XTCFilter | None = None,
    ) -> None:
        self.sampling = sampling
        self.pipelined = True
        self.constraint = constraint
        self._infill = infill
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.xtc = xtc
        if xtc is None and sampling.xtc_probability > 0 and not sampling.greedy:
            self.xtc = XTCFilter(sampling, self.seed, never_excluded)
        self._bias = make_logits_processors(logit_bias=dict(sampling.logit_bias))
        self._processors = make_penalties(sampling, prompt, generated)
        if constraint is not None:
            self._processors.append(constraint)

    def blocks(self, rows: int) -> bool:
        """Whether `choose` and `distributions` wait for the logits. If so, call them when the
        forward pass is read; pipelining gains nothing."""
        waits = not self.sampling.greedy and waits_for_nucleus(self.sampling, rows, self.pipelined)
        return waits or self._infill is not None

    def process_logits(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits to choose from: biased, penalised and constrained.

        Row `i` of `logits`, `[rows, vocabulary]`, predicts the token at `position + i`, just after
        `inputs[i]`. The inputs, `[rows]`, may be lazy, and the last ones may be draft tokens; a
        constraint waits for them.
        """
        for add_bias in self._bias:
            logits = add_bias(inputs, logits)
        for processor in self._processors:
            logits = processor.process(logits, position, inputs)
        return logits

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The tokens for processed logits, as a lazy array `[rows]`; see `process_logits`."""
        if self.sampling.greedy and self._infill is None:
            return mx.argmax(logits, axis=-1)
        scores, ids = self._scores(logits, position)
        if not self.sampling.greedy:
            rows, vocabulary = logits.shape
            keys = random_keys(self.seed, range(position, position + rows))
            numbers = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(keys)
            if ids is not None:
                numbers = mx.take_along_axis(numbers, ids, axis=-1)
            # The Gumbel trick of `mx.random.categorical`, for only the tokens that are needed.
            scores = scores - mx.log(-mx.log(numbers))
        chosen = mx.argmax(scores, axis=-1, keepdims=True)
        if ids is not None:
            chosen = mx.take_along_axis(ids, chosen, axis=-1)
        return chosen.squeeze(-1)

    def distributions(self, logits: mx.array, position: int) -> mx.array:
        """The distributions that `choose` draws from, lazy, float32 `[rows, vocabulary]`."""
        scores, ids = self._scores(logits, position)
        probabilities = mx.softmax(scores, axis=-1)
        if ids is None:
            return probabilities
        return mx.put_along_axis(mx.zeros(logits.shape), ids, probabilities, axis=-1)

    def logprobs(self, logits: mx.array, position: int) -> mx.array:
        """The logarithms of `distributions`, also for greedy sampling."""
        if self.sampling.greedy and self._infill is None:
            best = mx.argmax(logits, axis=-1, keepdims=True)
            return mx.where(mx.arange(logits.shape[-1]) == best, 0.0, -mx.inf)
        return mx.log(self.distributions(logits, position))

    def uniforms(self, position: int) -> tuple[float, float]:
        """The random numbers that accept or replace a draft token at `position`."""
        return (
            uniform(self.seed, position, _TO_ACCEPT),
            uniform(self.seed, position, _TO_CORRECT),
        )

    def _scores(self, logits: mx.array, position: int) -> tuple[mx.array, mx.array | None]:
        """The log-probabilities that `choose` draws from, up to a constant per row, and their ids;
        see `filtered`."""
        exclude = None if self.xtc is None else partial(self.xtc.apply, position=position)
        scores, ids = filtered(logits, self.sampling, exclude, pipelined=self.pipelined)
        if self._infill is not None:
            if ids is not None:
                scores = mx.put_along_axis(mx.full(logits.shape, -mx.inf), ids, scores, axis=-1)
            scores, ids = self._infill.apply(scores, self.sampling.top_k), None
        return (scores if self.sampling.greedy else scores * (1 / self.sampling.temperature)), ids


class SamplerFactory:
    """Makes samplers for a model that predicts `vocabulary_size` of its tokenizer's ids."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self.constraints = ConstraintFactory(tokenizer, vocabulary_size)

    def make(
        self, options: Options, prompt: Sequence[int], end_tokens: frozenset[int] = frozenset()
    ) -> Sampler:
        """The sampler for the answer to `prompt`, which `end_tokens` or the model's own end tokens
        end. Refuses a bias for a token that the model lacks, and bad grammars."""
        for token, _ in options.logit_bias:
            if token >= self._vocabulary_size:
                raise InvalidRequestError(
                    f"There is no token {token} to bias; "
                    f"the vocabulary has {self._vocabulary_size}."
                )
        constraint = None
        if options.grammar is not None:
            constraint = self.constraints.make(options.grammar, len(prompt), options.reasoning)
        return Sampler(
            options,
            prompt,
            constraint=constraint,
            infill=self._infill(end_tokens) if options.infill else None,
            never_excluded=self._never_excluded,
        )

    @cached_property
    def _never_excluded(self) -> set[int]:
        return self._predicted(self._tokenizer.end_tokens.union(self._tokenizer.encode("\n")))

    def _infill(self, end_tokens: frozenset[int]) -> InfillFilter:
        own, special = self._predicted(self._tokenizer.end_tokens), self._tokenizer.special_tokens
        spell = self._tokenizer.token_bytes.of
        return InfillFilter(
            [*sorted(own), *sorted(self._predicted(end_tokens) - own)],
            lambda token: b"" if token in special else spell(token),
        )

    def _predicted(self, tokens: Iterable[int]) -> set[int]:
        """The tokens that the model has: a tokenizer may know more, and MLX does not check ids."""
        return {token for token in tokens if token < self._vocabulary_size}


def random_keys(seed: int, positions: Sequence[int]) -> mx.array:
    """MLX random keys, uint32 `[positions, 2]`: one per position, derived from the seed."""
    words = [mix64(seed + GOLDEN_GAMMA * (position + 1)) for position in positions]
    return mx.array(np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=np.uint32))
