"""Attention for the CPU, with the projections of Llama and Qwen2.

One multiplication makes queries, keys and values; queries and keys are turned together; the heads
that share keys are multiplied with them at once; and the softmax is divided after the values are
mixed, when there is less to divide.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.cpu.exponential import exponential_of
from akunu_py.cpu.joined_linear import JoinedLinear, can_join

ATTENTION_LAYERS: Final = (llama.Attention, qwen2.Attention)
"""The layers that `FusedAttention` can stand for."""


class CausalMask:
    """The mask of the last rows of a causal attention, made once a forward for all layers."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, int], mx.array] | None = None

    def rows(self, count: int, total: int) -> mx.array:
        """What to add to scores `[count, total]` of the last `count` of `total` positions."""
        if self._last is None or self._last[0] != (count, total):
            visible = mx.arange(total) <= mx.arange(total - count, total)[:, None]
            self._last = (count, total), mx.where(visible, 0.0, -mx.inf)
        return self._last[1]


class FusedAttention(nn.Module):  # type: ignore[misc]
    """An attention layer of Llama or Qwen2 in fewer operations.

    Args:
        original: what it does as well, and does where this does not apply: in half precision, and
            under masks of other shapes. Its projections borrow their weights from here.
        rope: its rotary layer, or a faster form of it.
        mask: shared by all layers.
    """

    def __init__(self, original: nn.Module, rope: nn.Module, mask: CausalMask) -> None:
        super().__init__()
        self.projections = JoinedLinear(projections_of(original))
        self.projections.lend(projections_of(original))
        self.o_proj = original.o_proj
        self.rope = rope
        self._heads, self._kv_heads = original.n_heads, original.n_kv_heads
        self._scale = original.scale
        self._mask = mask
        self._compute_as_before = original.__call__

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is one of these layers, with dense weights."""
        return type(layer) in ATTENTION_LAYERS and can_join(projections_of(layer))

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        offset = 0 if cache is None else cache.offset
        known_mask = mask is None or (isinstance(mask, str) and mask == "causal")
        if x.dtype != mx.float32 or not known_mask or not isinstance(offset, int):
            computed: mx.array = self._compute_as_before(x, mask, cache)
            return computed
        batch, count, _ = x.shape
        asking, turning = self._heads, self._heads + self._kv_heads
        heads = self.projections(x).reshape(batch, count, turning + self._kv_heads, -1)
        heads = heads.transpose(0, 2, 1, 3)
        turned = self.rope(heads[:, :turning], offset=offset)
        queries, keys, values = turned[:, :asking], turned[:, asking:], heads[:, turning:]
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        rows = None if mask is None else self._mask.rows(count, keys.shape[2])
        mixed = grouped_attention(queries, keys, values, self._scale, rows)
        joined: mx.array = self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(batch, count, -1))
        return joined


def projections_of(layer: nn.Module) -> list[nn.Module]:
    """What makes the queries, the keys and the values."""
    return [layer.q_proj, layer.k_proj, layer.v_proj]


def grouped_attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None
) -> mx.array:
    """Scaled dot-product attention where several query heads share the keys of one head.

    Args:
        queries: `[batch, heads, count, head_dim]`, float32.
        keys: `[batch, kv_heads, total, head_dim]`.
        values: as the keys.
        scale: of the scores.
        mask: `[count, total]`, added to the scores; None hides nothing.

    Returns:
        As the queries.
    """
    batch, _, count, head_dim = queries.shape
    _, kv_heads, total, _ = keys.shape
    scores = queries.reshape(batch, kv_heads, -1, head_dim) @ keys.swapaxes(-1, -2)
    if mask is not None:
        by_query = scores.reshape(batch, kv_heads, -1, count, total)
        scores = (by_query + mask).reshape(scores.shape)
    weights = _softmax_numerators(scale)(scores, mx.max(scores, axis=-1, keepdims=True))
    mixed = (weights @ values) / mx.sum(weights, axis=-1, keepdims=True)
    return mixed.reshape(queries.shape)


@cache
def _softmax_numerators(scale: float) -> Callable[..., mx.array]:
    """From scores that are not yet scaled, and their peaks."""
    return exponential_of(lambda scores, peak: (scores - peak) * scale)
