"""Attention for the CPU, with the projections of Llama and Qwen2, and rotary positions from a
table.

One multiplication makes queries, keys and values, one rotates queries and keys, with results that
are the same to the bit, and one multiplies the keys by all heads that share them. Where there are
many scores, the softmax divides only after the values are mixed.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from typing import Any, Final, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2
from mlx_lm.models.rope_utils import Llama3RoPE

from akunu_py.model.cpu.layers import FEW, JoinedLinear, can_join, exponential_of

Angles = tuple[mx.array, mx.array]
"""Cosines and sines, `[positions, dims / 2]` each."""

ROTARY_LAYERS: Final = (nn.RoPE, Llama3RoPE)
"""The layers that a table may replace; see `RotaryTable.is_right`."""

_FIRST_POSITIONS: Final = 2048


class RotaryTable:
    """The cosines and sines of a rotary layer's angles, for every position up to some length.

    The layer itself computes them from ones, so that they include any scaling of its frequencies.
    """

    def __init__(self, layer: Any) -> None:
        self.dims: int = layer.dims
        self._layer = layer
        self._half = layer.dims // 2
        self._positions = 0
        self._last: tuple[range | list[int], Angles] | None = None

    @property
    def is_right(self) -> bool:
        """Whether the table gives the layer's results; not if the layer pairs neighbours."""
        x = mx.random.normal((1, 1, 3, self.dims), key=mx.random.key(0))
        return bool(mx.array_equal(rotate(x, *self.rows(range(5, 8))), self._layer(x, offset=5)))

    def rows(self, positions: range | list[int]) -> Angles:
        """The angles of some positions; kept, because all layers of a forward pass need them."""
        if self._last is None or self._last[0] != positions:
            if max(positions) >= self._positions:
                self._extend(max(positions) + 1)
            where: Any = slice(positions[0], positions[-1] + 1)
            if isinstance(positions, list):
                where = mx.array(positions)
            self._last = positions, (self._cosines[where], self._sines[where])
        return self._last[1]

    def _extend(self, positions: int) -> None:
        self._positions = max(_FIRST_POSITIONS, 1 << (positions - 1).bit_length())
        shape = (1, 1, self._positions, self._half)
        rotated = self._layer(mx.concatenate([mx.ones(shape), mx.zeros(shape)], axis=-1), offset=0)
        cosines, sines = mx.split(rotated[0, 0], 2, axis=-1)
        self._cosines, self._sines = mx.contiguous(cosines), mx.contiguous(sines)
        mx.eval(self._cosines, self._sines)


class TableRoPE(nn.Module):  # type: ignore[misc]
    """A rotary layer with a table; the original computes other types, and offsets by row."""

    def __init__(self, original: nn.Module, table: RotaryTable) -> None:
        super().__init__()
        self._original = original
        self._table = table

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if isinstance(offset, int) and x.dtype == mx.float32 and x.shape[-1] == self._table.dims:
            return rotate(x, *self._table.rows(range(offset, offset + x.shape[-2])))
        return cast(mx.array, self._original(x, offset=offset))


@partial(mx.compile, shapeless=True)
def _rotate_halves(
    first: mx.array, second: mx.array, cosine: mx.array, sine: mx.array
) -> tuple[mx.array, mx.array]:
    return first * cosine - second * sine, first * sine + second * cosine


def rotate(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Rotates float32 `[..., positions, dims]` by the angles of these positions."""
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate(list(_rotate_halves(first, second, cosines, sines)), axis=-1)


def settings_of(layer: nn.Module) -> Hashable:
    """All numbers of a rotary layer; layers with the same ones can share a table."""
    return type(layer), tuple(
        (name, repr(value.tolist() if isinstance(value, mx.array) else value))
        for name, value in sorted({**vars(layer), **layer}.items())
    )


_UNDIVIDED_ROWS: Final = 17
_MOST_SCORES: Final = 1 << 18
_FEWEST_ROWS: Final = 8
"""An attention over more rows, as in a prefill, is computed in parts of at most this many scores,
but at least this many rows. MLX keeps about twenty copies of a part's scores, because it allocates
ahead of computing; parts of 1 MB stay in a CPU's cache."""


def causal_mask(count: int) -> mx.array:
    """The mask `[count, count]` to add to the scores of `count` positions with each other."""
    visible = mx.arange(count) <= mx.arange(count)[:, None]
    return mx.where(visible, 0.0, -mx.inf)


class FusedAttention(nn.Module):  # type: ignore[misc]
    """An attention layer of Llama or Qwen2 in fewer operations, alone and in a batched forward
    pass.

    The original computes everything else: several sequences of one shape, forward passes without a
    cache, windows, and masks that are not causal. Its projections become views of joined weights.
    """

    def __init__(
        self, original: nn.Module, table: RotaryTable, mask: Callable[[int], mx.array]
    ) -> None:
        super().__init__()
        self.projections = JoinedLinear(_projections_of(original))
        self.projections.share_with(_projections_of(original))
        self.output = JoinedLinear([original.o_proj])
        self.scale: float = original.scale
        self._table = table
        self._mask = mask
        self._compute_by_original = original.__call__
        self._query_heads = original.n_heads
        self._rotating = original.n_heads + original.n_kv_heads
        self._heads = self._rotating + original.n_kv_heads

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        return (
            type(layer) in (llama.Attention, qwen2.Attention)
            and can_join(_projections_of(layer))
            and can_join([layer.o_proj])
        )

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        batch, count, _ = x.shape
        if hasattr(cache, "append_each") and mask is None and not cache.has_window:
            projected = self.project(x[:, 0], *self._table.rows(cache.rows.positions))
            return self.output(self._attend_each(*projected, cache))[:, None]
        causal = mask is None if count == 1 else isinstance(mask, str)
        if batch > 1 or not causal or not isinstance(getattr(cache, "offset", None), int):
            computed: mx.array = self._compute_by_original(x, mask, cache)
            return computed
        angles = self._table.rows(range(cache.offset, cache.offset + count))
        queries, keys, values = self.project(x[0], *angles)
        mixed = self._attend(queries, *cache.update_and_fetch(keys, values))
        return self.output(mixed)[None]

    def project(
        self, x: mx.array, cosines: mx.array, sines: mx.array
    ) -> tuple[mx.array, mx.array, mx.array]:
        """The rotated queries and keys, and the values of rows `[count, hidden_size]`, as
        `[1, heads, count, head_dim]`."""
        count, projected = x.shape[0], self.projections(x)
        if count == 1:
            heads = projected.reshape(1, self._heads, 1, -1)
        else:
            heads = projected.reshape(1, count, self._heads, -1).swapaxes(1, 2)
        rotating, values = mx.split(heads, [self._rotating], axis=1)
        queries, keys = mx.split(rotate(rotating, cosines, sines), [self._query_heads], axis=1)
        return queries, keys, values

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
        count, total = queries.shape[2], keys.shape[2]
        most = max(_FEWEST_ROWS, _MOST_SCORES // (self._query_heads * total))
        if count > max(_UNDIVIDED_ROWS, most):
            parts = list[mx.array]()
            for start in range(0, count, most):
                stop = min(start + most, count)
                seen = slice(total - count + stop)
                rows = queries[..., start:stop, :]
                if parts:  # otherwise MLX computes all scores first
                    rows = mx.depends(rows, parts[-1])
                parts.append(self._attend(rows, keys[..., seen, :], values[..., seen, :]))
            return mx.concatenate(parts)
        mask = None if count == 1 else self._mask(count)
        return grouped_attention(queries, keys, values, self.scale, mask)

    def _attend_each(
        self, queries: mx.array, keys: mx.array, values: mx.array, cache: Any
    ) -> mx.array:
        if cache.rows.are_joined:
            keys, values = cache.append_joined(keys.swapaxes(0, 2), values.swapaxes(0, 2))
            queries, mask = queries.swapaxes(0, 2), cache.rows.additive_mask
            return grouped_attention(queries, keys, values, self.scale, mask)
        held = cache.append_each(keys, values)
        if queries.shape[2] == len(held):
            return single_attentions(queries, held, self.scale)
        rows = cache.rows.split(queries, 2)
        return mx.concatenate(
            [self._attend(own, *pair) for own, pair in zip(rows, held, strict=True)]
        )


def _projections_of(layer: nn.Module) -> list[nn.Module]:
    return [layer.q_proj, layer.k_proj, layer.v_proj]


def grouped_attention(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None
) -> mx.array:
    """Scaled dot-product attention where several query heads share the keys of one head: float32
    queries `[batch, heads, count, head_dim]`, keys and values `[batch, kv_heads, total, head_dim]`;
    returns `[batch * count, heads * head_dim]`.

    The mask, `[count, last]` or `[batch, 1, 1, count, last]`, is added to the scores of the last
    positions only: one over a long context would take as much memory as a cache.
    """
    batch, heads, count, head_dim = queries.shape
    _, kv_heads, total, _ = keys.shape
    scores = queries.reshape(batch, kv_heads, -1, head_dim) @ keys.swapaxes(-1, -2)
    if mask is not None:
        by_query = scores.reshape(batch, kv_heads, -1, count, total)
        if mask.shape[-1] == total:
            by_query = by_query + mask
        else:
            by_query[..., total - mask.shape[-1] :] += mask
        scores = by_query.reshape(scores.shape)
    mixed = _mixed(scores, values, scale)
    if count > 1:
        mixed = mixed.reshape(queries.shape).swapaxes(1, 2)
    return mixed.reshape(batch * count, heads * head_dim)


def single_attentions(
    queries: mx.array, held: Sequence[tuple[mx.array, mx.array]], scale: float
) -> mx.array:
    """The attentions of several sequences with one row each, `[sequences, heads * head_dim]`.

    `queries` are `[1, heads, sequences, head_dim]`, `held` the keys and the values of each.
    """
    _, _, count, head_dim = queries.shape
    kv_heads = held[0][0].shape[1]
    grouped = (queries.swapaxes(1, 2) * scale).reshape(count, kv_heads, -1, head_dim)
    mixed = [
        _mixed(rows @ keys.swapaxes(-1, -2), values)
        for rows, (keys, values) in zip(mx.split(grouped, count), held, strict=True)
    ]
    return mx.concatenate(mixed).reshape(count, -1)


def _mixed(scores: mx.array, values: mx.array, scale: float = 1.0) -> mx.array:
    if scores.size < FEW:
        return mx.softmax(scores if scale == 1.0 else scores * scale, axis=-1) @ values
    weights = _softmax_numerators(scale)(scores, mx.max(scores, axis=-1, keepdims=True))
    return (weights @ values) / mx.sum(weights, axis=-1, keepdims=True)


@cache
def _softmax_numerators(scale: float) -> Callable[..., mx.array]:
    return exponential_of(lambda scores, peak: (scores - peak) * scale)
