"""XTC, "exclude top choices": sometimes drops every likely token but the least likely of them.

It excludes what mlx-lm's `apply_xtc` excludes. There, one random number decides for a whole batch;
here, each position has its own, which depends only on the seed and the position. So a row has the
same distribution whether it is decoded alone or verified with a draft.
"""

from collections.abc import Iterable
from typing import Final

import mlx.core as mx

from akunu_py.options import Sampling
from akunu_py.sampling.random import uniform

_TO_EXCLUDE: Final = 3
"""The stream of random numbers that decide at which positions to exclude."""


class XTCFilter:
    """Excludes the top choices at some positions of one text.

    Args:
        sampling: with the probability and the threshold of the request.
        seed: of the request's sampler.
        kept: ids that are never excluded: as in mlx-lm, those of a line break and those that end
            an answer.
    """

    def __init__(self, sampling: Sampling, seed: int, kept: Iterable[int] = ()) -> None:
        self._probability = sampling.xtc_probability
        self._threshold = sampling.xtc_threshold
        self._seed = seed
        self._kept = sorted(kept)

    def apply(self, scores: mx.array, position: int) -> mx.array:
        """Log-probabilities `[rows, vocabulary]` with excluded tokens at minus infinity; row `i`
        predicts the token at `position + i`."""
        excludes = [
            uniform(self._seed, position + row, _TO_EXCLUDE) < self._probability
            for row in range(scores.shape[0])
        ]
        if not any(excludes):
            return scores
        probabilities = mx.softmax(scores, axis=-1)
        likely = mx.where(probabilities > self._threshold, probabilities, mx.inf)
        top = (probabilities > mx.min(likely, axis=-1, keepdims=True)) & mx.array(excludes)[:, None]
        if self._kept:
            top[:, mx.array(self._kept)] = False
        return mx.where(top, -mx.inf, scores)
