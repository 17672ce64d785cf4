"""Rotary positions for the CPU, from a table; the results are the same to the bit."""

from collections.abc import Hashable
from functools import partial
from typing import Any, Final, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models.rope_utils import Llama3RoPE

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
