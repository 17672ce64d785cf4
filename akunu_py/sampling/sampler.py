"""From logits to the distribution a request asked for, and from that to a token.

A choice is a function of the logits, the seed and the token's position alone. So a sampled text
does not depend on how many tokens a forward happened to verify, and a draft stands exactly when
it equals what plain decoding would have drawn: sample-and-match.
"""

import secrets
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np
from mlx_lm.sample_utils import (
    apply_min_p,
    apply_top_k,
    apply_top_p,
    make_logits_processors,
)

from akunu_py.options import Sampling
from akunu_py.sampling.chance import GOLDEN_GAMMA, mix64, uniform
from akunu_py.sampling.constraint import Constraint
from akunu_py.sampling.infill import InfillFilter
from akunu_py.sampling.penalties import make_penalties

_TO_ACCEPT: Final = 1
_TO_CORRECT: Final = 2
"""Streams of chance; a drafter's is 0."""


class Sampler:
    """Chooses one token a row of logits, reproducibly.

    Args:
        sampling: what the request asked for.
        prompt: its tokens, which penalties look back on.
        constraint: what the answer must keep to, if anything.
        infill: the filter that comes after the others, if any.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        *,
        constraint: Constraint | None = None,
        infill: InfillFilter | None = None,
    ) -> None:
        self.sampling = sampling
        self.constraint = constraint
        self._infill = infill
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._bias = make_logits_processors(logit_bias=dict(sampling.logit_bias))
        self._penalties = make_penalties(sampling, prompt)

    @property
    def blocks(self) -> bool:
        """Whether `choose` waits for the logits, so that running ahead of it gains nothing."""
        return self._infill is not None

    @property
    def max_logit_gain(self) -> float:
        """How many times as far apart `process_logits` may put two logits."""
        penalty = self.sampling.repetition_penalty
        return max(penalty, 1 / penalty)

    def process_logits(self, logits: mx.array, position: int, inputs: mx.array) -> mx.array:
        """The logits that a request is answered from: biased, penalised and constrained.

        With a constraint this waits for lazy inputs.

        Args:
            logits: `[rows, vocabulary]`; row `i` predicts the token at `position + i`.
            position: of the token that the first row predicts.
            inputs: the tokens that the forward took, `[rows]`; `inputs[i]` stands just before
                what row `i` predicts. They may be lazy, and the last ones drafts.
        """
        for add_bias in self._bias:
            logits = add_bias(inputs, logits)
        for penalty in self._penalties:
            logits = penalty.apply(logits, position, inputs)
        if self.constraint is not None:
            logits = self.constraint.apply(logits, position, inputs)
        return logits

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The tokens for edited logits `[rows, vocabulary]`, as a lazy array of shape `[rows]`.

        Args:
            logits: row `i` predicts the token at `position + i`.
            position: where in the sequence the first row's token will stand, 0-based.
        """
        if self.sampling.greedy and self._infill is None:
            return mx.argmax(logits, axis=-1)
        scores = log_distribution(logits, self.sampling, self._infill)
        if self.sampling.greedy:
            return mx.argmax(scores, axis=-1)
        keys = random_keys(self.seed, range(position, position + logits.shape[0]))
        draw = mx.vmap(lambda row, key: mx.random.categorical(row, key=key))
        return draw(scores, keys)

    def distributions(self, logits: mx.array) -> mx.array:
        """The distributions that `choose` draws from, lazy, float32 `[rows, vocabulary]`."""
        return mx.softmax(log_distribution(logits, self.sampling, self._infill), axis=-1)

    def uniforms(self, position: int) -> tuple[float, float]:
        """The numbers by which a draft for `position` stands, and by which it is corrected."""
        return (
            uniform(self.seed, position, _TO_ACCEPT),
            uniform(self.seed, position, _TO_CORRECT),
        )


def log_distribution(
    logits: mx.array, sampling: Sampling, infill: InfillFilter | None = None
) -> mx.array:
    """Log-probabilities, up to a constant a row, of the distribution that `sampling` asks for.

    As in mlx-lm the filters look at the model's own distribution, and temperature comes last.

    Args:
        logits: `[rows, vocabulary]`.
        sampling: without a temperature the filters alone are applied.
        infill: comes after the other filters.

    Returns:
        float32 `[rows, vocabulary]`; tokens that were filtered out are at minus infinity.
    """
    logits = logits.astype(mx.float32)
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    if sampling.top_p < 1:
        scores = apply_top_p(scores, sampling.top_p)
    if sampling.min_p > 0:
        scores = apply_min_p(scores, sampling.min_p)
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = apply_top_k(scores, sampling.top_k)
    if infill is not None:
        scores = infill.apply(scores, sampling.top_k)
    return scores if sampling.greedy else scores * (1 / sampling.temperature)


def random_keys(seed: int, positions: Sequence[int]) -> mx.array:
    """MLX random keys, uint32 `[positions, 2]`: one stream a position, mixed from the seed."""
    words = [mix64(seed + GOLDEN_GAMMA * (position + 1)) for position in positions]
    return mx.array(np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=np.uint32))
