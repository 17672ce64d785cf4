"""Forced answers: a reference text stands in for the target's choices, each forward paid for.

So a small model shows what an engine does with the answers of a perfect one. Every forward is
computed as always; only which token it chose is replaced, after that choice was made. For akunu
that is a `Sampler`, for mlx-lm a sampler.
"""

from collections.abc import Sequence

import mlx.core as mx

from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler

_NOTHING = 0


class ForcedSampler(Sampler):
    """Chooses the tokens of a reference by their position, whatever the logits say.

    Args:
        prompt: the tokens before the reference.
        reference: what is chosen.
    """

    def __init__(self, prompt: Sequence[int], reference: Sequence[int]) -> None:
        super().__init__(Sampling(), prompt)
        self._tokens = [*prompt, *reference]

    def choose(self, logits: mx.array, position: int) -> mx.array:
        """The reference's tokens from `position` on, lazy: they wait for the logits."""
        rows = logits.shape[0]
        wanted = self._tokens[position : position + rows]
        return _in_place_of(super().choose(logits, position), wanted)


class ForcedMlxLmSampler:
    """An mlx-lm sampler that returns the tokens of a reference one after another.

    Args:
        reference: what is returned.
    """

    def __init__(self, reference: Sequence[int]) -> None:
        self._left = iter(reference)

    def __call__(self, logprobs: mx.array) -> mx.array:
        wanted = next(self._left, _NOTHING)
        return _in_place_of(mx.argmax(logprobs, axis=-1), [wanted])


def _in_place_of(chosen: mx.array, wanted: Sequence[int]) -> mx.array:
    """The tokens that are wanted, computed from those that were chosen; 0 past their end."""
    padded = [*wanted, *[_NOTHING] * (chosen.size - len(wanted))]
    return mx.maximum(chosen * 0, mx.array(padded, dtype=chosen.dtype))
