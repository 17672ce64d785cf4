"""InfillFilter: llama.cpp's `infill` sampler, which ends a fill-in-the-middle answer in time.

It looks at the few tokens that top-k and top-p left. If the end tokens are likely enough, it
keeps only these. Otherwise tokens whose texts begin alike count as one, unlikely ones are dropped,
and if none is left the answer ends. The result for a row depends only on that row.
Source: the description of `llama_sampler_init_infill` in llama.cpp's `llama.h`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import mlx.core as mx
import numpy as np

DEFAULT_CANDIDATES: Final = 40
"""What llama.cpp's top-k leaves if a request sets none."""
MAX_CANDIDATES: Final = 128

_END_WEIGHT: Final = 3
"""End tokens win if their probability, times this and the number of candidates, exceeds the
probability of the others."""
_MIN_PROB: Final = 0.2
"""Less likely texts are dropped; texts that begin alike count as one."""


class InfillFilter:
    """Applies the sampler to rows of log-probabilities.

    Args:
        end_tokens: ids that end the answer; the first is used if no other token is left.
        text_of: returns the bytes of a token's text, empty for special tokens.
    """

    def __init__(self, end_tokens: Sequence[int], text_of: Callable[[int], bytes]) -> None:
        self._end_tokens = frozenset(end_tokens)
        self._last_resort = end_tokens[0] if end_tokens else None
        self._text_of = text_of

    def apply(self, scores: mx.array, top_k: int) -> mx.array:
        """The log-probabilities of the tokens left, `[rows, vocabulary]`; waits for `scores`.

        Args:
            scores: log-probabilities, up to a constant per row, `[rows, vocabulary]`.
            top_k: the request's top-k; 0 if it has none.
        """
        count = min(top_k or DEFAULT_CANDIDATES, MAX_CANDIDATES, scores.shape[-1])
        ids = mx.argpartition(-scores, kth=count - 1, axis=-1)[:, :count]
        values = mx.take_along_axis(scores, ids, axis=-1)
        slots = np.array(ids)
        chosen = np.full(slots.shape, -np.inf, dtype=np.float32)
        for row, likely in enumerate(np.exp(np.array(values, dtype=np.float64))):
            left = self.left_of(dict(zip(slots[row].tolist(), likely.tolist(), strict=True)))
            missing = left.keys() - set(slots[row].tolist())
            slots[row, : len(missing)] = list(missing)
            for slot, token in enumerate(slots[row].tolist()):
                if probability := left.get(token):
                    chosen[row, slot] = math.log(probability)
        nothing = mx.full(scores.shape, -mx.inf)
        return mx.put_along_axis(nothing, mx.array(slots), mx.array(chosen), axis=-1)

    def left_of(self, candidates: dict[int, float]) -> dict[int, float]:
        """The tokens that the sampler leaves, with their probabilities, normalised."""
        total = sum(candidates.values())
        ordered = sorted(candidates.items(), key=lambda pair: (-pair[1], pair[0]))
        ordered = [(token, value / total) for token, value in ordered if value > 0]
        ends = {token: value for token, value in ordered if token in self._end_tokens}
        if _END_WEIGHT * sum(ends.values()) * len(ordered) > 1 - sum(ends.values()):
            return _normalised(ends)
        texts = self._merged([pair for pair in ordered if pair[0] not in ends])
        kept = {token: value for token, value in texts.items() if value >= _MIN_PROB}
        if not kept:
            token = next(iter(texts)) if self._last_resort is None else self._last_resort
            return {token: 1.0}
        least = 1 / (len(kept) + 1)
        kept = _normalised(kept | ends)
        return _normalised(
            {token: value for token, value in kept.items() if value >= least or token in ends}
        )

    def _merged(self, candidates: list[tuple[int, float]]) -> dict[int, float]:
        """The candidates; of two that begin alike, the more likely one with the sum of both."""
        texts = [self._text_of(token) for token, _ in candidates]
        values = [value for _, value in candidates]
        alive = [True] * len(texts)
        for short, text in enumerate(texts):
            for long, other in enumerate(texts):
                if not alive[short]:
                    break
                if text and long != short and alive[long] and other.startswith(text):
                    winner, loser = (long, short) if values[long] > values[short] else (short, long)
                    values[winner] += values[loser]
                    alive[loser] = False
        return {
            token: value
            for (token, _), value, lives in zip(candidates, values, alive, strict=True)
            if lives
        }


def _normalised(values: dict[int, float]) -> dict[int, float]:
    total = sum(values.values())
    return {token: value / total for token, value in values.items()}
