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
from mlx_lm.sample_utils import apply_min_p, apply_top_k, make_logits_processors

from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling
from akunu_py.sampling.constraint import Constraint
from akunu_py.sampling.constraint_factory import ConstraintFactory
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
        prompt: its tokens, which the penalties count too, and those that have been generated.
        generated: how many these are.
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
        generated: int = 0,
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
        self._processors = make_penalties(sampling, prompt, generated)
        if constraint is not None:
            self._processors.append(constraint)

    @property
    def blocks(self) -> bool:
        """Whether `choose` and `distributions` wait for the logits. They are better called when the
        forward is read then, and pipelining gains nothing."""
        sorts = not self.sampling.greedy and sorts_in_numpy(self.sampling)
        return sorts or self._infill is not None

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
        scores, ids = self._scores(logits, position)
        if not self.sampling.greedy:
            rows, vocabulary = logits.shape
            keys = random_keys(self.seed, range(position, position + rows))
            numbers = mx.vmap(lambda key: mx.random.uniform(shape=(vocabulary,), key=key))(keys)
            if ids is not None:
                numbers = mx.take_along_axis(numbers, ids, axis=-1)
            # The Gumbel trick, as in `mx.random.categorical`, of which only some tokens are needed.
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
        """The logarithms of the probabilities that `choose` draws with, lazy; minus infinity for
        tokens that it cannot choose."""
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
        """The logarithms of what `choose` draws from, up to a constant per row; see `filtered`."""
        exclude = None if self.xtc is None else partial(self.xtc.apply, position=position)
        scores, ids = filtered(logits, self.sampling, exclude)
        if self._infill is not None:
            if ids is not None:
                scores = mx.put_along_axis(mx.full(logits.shape, -mx.inf), ids, scores, axis=-1)
            scores, ids = self._infill.apply(scores, self.sampling.top_k), None
        return (scores if self.sampling.greedy else scores * (1 / self.sampling.temperature)), ids


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
        return self._predicted(self._tokenizer.end_tokens.union(self._tokenizer.encode("\n")))

    def _infill(self, end_tokens: frozenset[int]) -> InfillFilter:
        own, special = self._predicted(self._tokenizer.end_tokens), self._tokenizer.special_tokens
        spell = self._tokenizer.token_bytes.of
        return InfillFilter(
            [*sorted(own), *sorted(self._predicted(end_tokens) - own)],
            lambda token: b"" if token in special else spell(token),
        )

    def _predicted(self, tokens: frozenset[int]) -> frozenset[int]:
        """Those that the model has: a tokenizer may know more, and MLX does not check ids."""
        return frozenset(token for token in tokens if token < self._vocabulary_size)


def filtered(
    logits: mx.array,
    sampling: Sampling,
    exclude: Callable[[mx.array], mx.array] | None = None,
) -> tuple[mx.array, mx.array | None]:
    """What the filters leave of a model's distribution, before the temperature, as in mlx-lm.

    With a top-k, only the k most likely tokens are looked at: what the other filters keep of these
    is what mlx-lm keeps, which applies the top-k last. XTC needs all tokens, because less likely
    ones take the places of those that it excludes.

    Args:
        logits: `[rows, vocabulary]`.
        sampling: has the filters.
        exclude: XTC at these positions, if the request has it.

    Returns:
        Log-probabilities, float32, those that were filtered out at minus infinity, and the ids that
        they belong to: both `[rows, candidates]`, or no ids if all tokens are candidates.
    """
    logits = logits.astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1, keepdims=True)
    ids = None
    has_top_k = 0 < sampling.top_k < logits.shape[-1]
    if has_top_k and exclude is None:
        ids = mx.argpartition(-logits, kth=sampling.top_k - 1, axis=-1)[:, : sampling.top_k]
        logits = mx.take_along_axis(logits, ids, axis=-1)
    scores = logits - total
    if sampling.top_p < 1:
        if ids is None and sorts_in_numpy(sampling):
            ordered = mx.array(np.sort(np.asarray(scores), axis=-1))
        else:
            ordered = mx.sort(scores, axis=-1)
        scores = keep_top_p(scores, ordered, sampling.top_p)
    if sampling.min_p > 0:
        scores = apply_min_p(scores, sampling.min_p)
    if exclude is not None:
        scores = exclude(scores)
        if has_top_k:
            scores = apply_top_k(scores, sampling.top_k)
    return scores, ids


def sorts_in_numpy(sampling: Sampling) -> bool:
    """Whether `filtered` waits for the logits and sorts them with NumPy: on a CPU, if it has to
    sort the whole vocabulary, because NumPy takes a fortieth of MLX's time there."""
    sorts_all = sampling.top_p < 1 and (not sampling.top_k or sampling.xtc_probability > 0)
    return sorts_all and mx.default_device() == mx.Device(mx.cpu)


def keep_top_p(scores: mx.array, ordered: mx.array, top_p: float) -> mx.array:
    """Drops the tokens before which more likely ones have a probability of `top_p` together.

    mlx-lm's rule, for log-probabilities of all tokens or of the most likely ones.

    Args:
        scores: log-probabilities, `[rows, candidates]`.
        ordered: the same, sorted, the most likely last.
        top_p: above 0.
    """
    mass_above = mx.cumsum(mx.exp(ordered), axis=-1, reverse=True, inclusive=False)
    num_dropped = (mass_above >= top_p).sum(axis=-1, keepdims=True)
    least = mx.take_along_axis(ordered, num_dropped, axis=-1)
    return mx.where(scores < least, -mx.inf, scores)


def random_keys(seed: int, positions: Sequence[int]) -> mx.array:
    """MLX random keys, uint32 `[positions, 2]`: one for each position, mixed from the seed."""
    words = [mix64(seed + GOLDEN_GAMMA * (position + 1)) for position in positions]
    return mx.array(np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=np.uint32))
