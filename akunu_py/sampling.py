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
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from akunu_py.options import Sampling

_UINT64_MASK: Final = (1 << 64) - 1


class TokenChooser:
    """Chooses one token a row of logits, reproducibly.

    Args:
        sampling: what the request asked for.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The tokens for logits `[rows, vocabulary]`, as a lazy array of shape `[rows]`.

        Args:
            logits: row `i` predicts the token at `position + i`.
            position: where in the sequence the first row's token will stand, 0-based.
        """
        if self._sampling.greedy:
            return mx.argmax(logits, axis=-1)
        scores = log_distribution(logits, self._sampling)
        keys = random_keys(self.seed, range(position, position + logits.shape[0]))
        draw = mx.vmap(lambda row, key: mx.random.categorical(row, key=key))
        return draw(scores, keys)


def log_distribution(logits: mx.array, sampling: Sampling) -> mx.array:
    """Log-probabilities, up to a constant a row, of the distribution that `sampling` asks for.

    As in mlx-lm the filters look at the model's own distribution, and temperature comes last.

    Args:
        logits: `[rows, vocabulary]`.
        sampling: with a temperature above 0.

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
    return scores * (1 / sampling.temperature)


def random_keys(seed: int, positions: Sequence[int]) -> mx.array:
    """MLX random keys, uint32 `[positions, 2]`: one stream a position, mixed from the seed."""
    words = [_mix64(seed + _GOLDEN_GAMMA * (position + 1)) for position in positions]
    return mx.array(np.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=np.uint32))


_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15


def _mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014): neighbours become unrelated."""
    value &= _UINT64_MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64_MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _UINT64_MASK
    return value ^ (value >> 31)
