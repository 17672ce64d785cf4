"""Sampler: from logits to the distribution that a request asked for, and from that to tokens.

A choice depends only on the logits, the seed and the token's position. So a sampled text does not
depend on how many tokens a forward verified, and a draft token is accepted exactly when plain
decoding would have drawn it: sample-and-match.
"""

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, partial
from typing import Final

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    make_logits_processors,
)

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling
from akunu_py.sampling.constraint import Constraint, ConstraintFactory
from akunu_py.sampling.infill import InfillFilter
from akunu_py.sampling.penalties import make_penalties
from akunu_py.sampling.random import GOLDEN_GAMMA, mix64, uniform
from akunu_py.sampling.xtc import XTCFilter
from akunu_py.text.tokenizer import Tokenizer

_TO_ACCEPT: Final = 1
_TO_CORRECT: Final = 2
"""Streams of random numbers; drafters use stream 0, and XTC stream 3."""


class Sampler:
    """Chooses one token for each row of logits, repeatably.

    Args:
        sampling: what the request asked for.
        prompt: its tokens, which the penalties count too.
        constraint: the constraint of the request's grammar, or None.
        infill: the filter to apply after the others, or None.
        never_excluded: ids that XTC keeps.
        xtc: the filter to use instead of the sampler's own; draft models share the target's.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        *,
        constraint: Constraint | None = None,
        infill: InfillFilter | None = None,
        never_excluded: Collection[int] = (),
        xtc: XTCFilter | None = None,
    ) -> None:
        self.sampling = sampling
        self.constraint = constraint
        self._infill = infill
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self.xtc = xtc
        if xtc is None and sampling.xtc_probability > 0 and not sampling.greedy:
            self.xtc = XTCFilter(sampling, self.seed, never_excluded)
        self._bias = make_logits_processors(logit_bias=dict(sampling.logit_bias))
        self._processors = make_penalties(sampling, prompt)
        if constraint is not None:
            self._processors.append(constraint)

    @property
    def blocks(self) -> bool:
        """Whether `choose` waits for the logits, so that pipelining gains nothing."""
        return self._infill is not None

    @property
    def max_logit_gain(self) -> float:
        """The factor by which `process_logits` may increase the difference of two logits."""
        penalty = self.sampling.repetition_penalty
        return max(penalty, 1 / penalty)

    def process_logits(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits to choose from: biased, penalised and constrained.

        With a constraint this waits for lazy inputs.

        Args:
            logits: `[rows, vocabulary]`; row `i` predicts the token at `position + i`.
            position: the position of the token that the first row predicts.
            inputs: the input tokens of the forward, `[rows]`; `inputs[i]` is the token just before
                the one that row `i` predicts. They may be lazy, and the last ones draft tokens.
        """
        for add_bias in self._bias:
            logits = add_bias(inputs, logits)
        for processor in self._processors:
            logits = processor.process(logits, position, inputs)
        return logits

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The tokens for processed logits `[rows, vocabulary]`, as a lazy array `[rows]`.

        Args:
            logits: row `i` predicts the token at `position + i`.
            position: the position of the token that the first row predicts, 0-based.
        """
        if self.sampling.greedy and self._infill is None:
            return mx.argmax(logits, axis=-1)
        scores = self._scores(logits, position)
        if self.sampling.greedy:
            return mx.argmax(scores, axis=-1)
        keys = random_keys(self.seed, range(position, position + logits.shape[0]))
        draw = mx.vmap(lambda row, key: mx.random.categorical(row, key=key))
        return draw(scores, keys)

    def distributions(self, logits: mx.array, position: int) -> mx.array:
        """The distributions that `choose` draws from, lazy, float32 `[rows, vocabulary]`."""
        return mx.softmax(self._scores(logits, position), axis=-1)

    def uniforms(self, position: int) -> tuple[float, float]:
        """The random numbers that accept or replace a draft token at `position`."""
        return (
            uniform(self.seed, position, _TO_ACCEPT),
            uniform(self.seed, position, _TO_CORRECT),
        )

    def _scores(self, logits: mx.array, position: int) -> mx.array:
        exclude = None if self.xtc is None else partial(self.xtc.apply, position=position)
        return log_distribution(logits, self.sampling, self._infill, exclude)


class SamplerFactory:
    """Makes samplers that fit a model's vocabulary.

    Args:
        tokenizer: the tokenizer of the model.
        vocabulary_size: how many ids the model predicts.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._constraints = ConstraintFactory(tokenizer, vocabulary_size)

    def make(
        self, options: Options, prompt: Sequence[int], end_tokens: frozenset[int] = frozenset()
    ) -> Sampler:
        """The sampler for the answer to `prompt`.

        Args:
            options: the options of the request.
            prompt: its ids.
            end_tokens: ids that end this answer, besides the model's usual ones.

        Raises:
            InvalidRequestError: if a bias is for a token that the model does not have, or the
                grammar cannot be followed.
        """
        vocabulary = self._vocabulary_size
        for token, _ in options.sampling.logit_bias:
            if token >= vocabulary:
                raise InvalidRequestError(
                    f"There is no token {token} to bias; the vocabulary has {vocabulary}."
                )
        constraint = None
        if options.grammar is not None:
            constraint = self._constraints.make(options.grammar, len(prompt))
        infill = self._infill(end_tokens) if options.sampling.infill else None
        return Sampler(
            options.sampling,
            prompt,
            constraint=constraint,
            infill=infill,
            never_excluded=self._never_excluded,
        )

    @cached_property
    def _never_excluded(self) -> frozenset[int]:
        return self._tokenizer.end_tokens.union(self._tokenizer.encode("\n"))

    def _infill(self, end_tokens: frozenset[int]) -> InfillFilter:
        own, special = self._tokenizer.end_tokens, self._tokenizer.special_tokens
        spell = self._tokenizer.token_bytes.of
        return InfillFilter(
            [*sorted(own), *sorted(end_tokens - own)],
            lambda token: b"" if token in special else spell(token),
        )


def log_distribution(
    logits: mx.array,
    sampling: Sampling,
    infill: InfillFilter | None = None,
    exclude: Callable[[mx.array], mx.array] | None = None,
) -> mx.array:
    """Log-probabilities, up to a constant per row, of the distribution that `sampling` asks for.

    As in mlx-lm, the filters look at the model's own distribution, and the temperature is applied
    last.

    Args:
        logits: `[rows, vocabulary]`.
        sampling: if its temperature is 0, only the filters are applied.
        infill: applied after the other filters.
        exclude: XTC at these positions; applied where mlx-lm applies it.

    Returns:
        float32 `[rows, vocabulary]`; tokens that were filtered out are at minus infinity.
    """
    logits = logits.astype(mx.float32)
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        scores = apply_top_p(scores, sampling.top_p)
    if sampling.min_p > 0:
        scores = apply_min_p(scores, sampling.min_p)
    if exclude is not None:
        scores = exclude(scores)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = apply_top_k(scores, sampling.top_k)
    if infill is not None:
        scores = infill.apply(scores, sampling.top_k)
    return scores if sampling.greedy else scores * (1 / sampling.temperature)


def random_keys(seed: int, positions: Sequence[int]) -> mx.array:
    """MLX random keys, uint32 `[positions, 2]`: one for each position, mixed from the seed."""
    words = [mix64(seed + GOLDEN_GAMMA * (position + 1)) for position in positions]
    return mx.array(np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=np.uint32))
