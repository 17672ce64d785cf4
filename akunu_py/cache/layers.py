"""The cache of a layer with full attention: keys and values in buffers, written in place.

It works with unmodified mlx-lm models. A rollback only moves a counter: what lies beyond it is
overwritten before it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from akunu_py.cache.states import form_of_rows
from akunu_py.errors import ContextOverflowError


def check_room(tokens: int, capacity: int) -> None:
    """Raises a `ContextOverflowError` if there is no room for this many tokens."""
    if tokens > capacity:
        raise ContextOverflowError(f"{tokens} tokens do not fit into a cache made for {capacity}.")


@dataclass(eq=False, slots=True)
class Buffers:
    """Keys and values, `[seats, kv_heads, rows, head_dim]` each; each seat is for one sequence."""

    keys: mx.array | None = None
    values: mx.array | None = None
    seats: int = 1


@dataclass(eq=False, slots=True)
class CacheGroup:
    """Caches that share buffers: at first `size` of them, each with room for `rows` tokens.

    The buffers are kept whole until all caches have `left`."""

    size: int
    rows: int
    left: int = 0


class LayerCache:
    """The keys and values of one layer with full attention.

    The two buffers have shape `[1, kv_heads, capacity, head_dim]` and the dtype of the first keys.
    MLX writes them in place only while nothing else holds a reference to them, so keep slices but
    never a reference. Names are mlx-lm's, because some of its models use them; `offset` counts the
    tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offset = 0
        self.nbytes = 0  # not a property, because every request reads it from all caches
        self.held = Buffers()
        self._seat = slice(None)

    @property
    def keys(self) -> mx.array | None:
        keys = self.held.keys
        return keys if keys is None or self.held.seats == 1 else keys[self._seat]

    @keys.setter
    def keys(self, keys: mx.array | None) -> None:
        self.held.keys = keys

    @property
    def values(self) -> mx.array | None:
        values = self.held.values
        return values if values is None or self.held.seats == 1 else values[self._seat]

    @values.setter
    def values(self, values: mx.array | None) -> None:
        self.held.values = values

    @property
    def floor(self) -> int:
        """The fewest tokens, besides 0, that it can be rolled back to."""
        return 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends `[1, kv_heads, tokens, head_dim]`; returns all keys and values so far. Raises
        ContextOverflowError, and writes nothing, if they do not fit.
        """
        self.append(keys, values)
        return self.keys_and_values()

    def append(self, keys: mx.array, values: mx.array) -> None:
        start, end = self.offset, self.end_of(keys)
        own_keys, own_values = self._buffers(keys, values)
        own_keys[self._seat, :, start:end] = keys
        own_values[self._seat, :, start:end] = values
        self.offset = end

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All keys and values so far, of at least one token."""
        keys, values = self.held.keys, self.held.values
        assert keys is not None
        assert values is not None
        where = self._seat, slice(None), slice(self.offset)
        return keys[where], values[where]

    def rollback(self, to: int) -> None:
        """Forgets every token after the first `to`, which must be 0 or at least `floor`."""
        self.offset = min(self.offset, to)

    def skip(self, tokens: int) -> None:
        """Counts tokens that were never computed, if the model uses this layer."""
        self.offset += tokens * (self.keys is not None)

    def grow(self, capacity: int) -> None:
        """Moves its content to larger buffers, if these are too small and there is memory."""
        keys = self.keys
        if keys is not None and capacity > keys.shape[2]:
            larger = LayerCache(capacity)
            larger.copy(self, self.offset)
            self.held, self._seat, self.nbytes = larger.held, larger._seat, larger.nbytes
        self.capacity = capacity

    @staticmethod
    def join(layers: "Sequence[LayerCache]") -> None:
        """Moves the content of several sequences, none of them empty, into shared buffers, so that
        one operation appends to all, and one attends to all. Each still works on its own."""
        first = layers[0]
        assert first.keys is not None
        assert first.values is not None
        rows = max(layer.capacity for layer in layers)
        shared = Buffers(seats=len(layers))
        shared.keys, shared.values = (
            mx.zeros((len(layers), like.shape[1], rows, like.shape[3]), like.dtype)
            for like in (first.keys, first.values)
        )
        for seat, layer in enumerate(layers):
            keys, values = layer.keys_and_values()
            shared.keys[seat : seat + 1, :, : layer.offset] = keys
            shared.values[seat : seat + 1, :, : layer.offset] = values
        mx.eval(shared.keys, shared.values)
        for seat, layer in enumerate(layers):
            layer.held, layer._seat = shared, slice(seat, seat + 1)
            layer.nbytes = (shared.keys.nbytes + shared.values.nbytes) // len(layers)

    def separate(self) -> None:
        """Moves its content to buffers of its own, if it shares some."""
        if self.held.seats > 1:
            keys, values = (mx.contiguous(part[:, :, : self.capacity]) for part in self.state)
            mx.eval(keys, values)
            self.held, self._seat = Buffers(keys, values), slice(None)
            self.nbytes = keys.nbytes + values.nbytes

    def copy(self, other: "LayerCache", tokens: int) -> None:
        """Copies the first `tokens` of another layer; they must fit."""
        if rows := other.rows(0, tokens):
            self.offset = 0
            self.append(*rows)
            mx.eval(self.state)

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """The causal mask for the next `tokens` positions, in the form mlx-lm's models expect."""
        return create_attention_mask(
            tokens, offset=self.offset, return_array=return_array, window_size=window_size
        )

    @property
    def kind(self) -> str:
        return type(self).__name__

    def rows(self, start: int, stop: int) -> tuple[mx.array, ...]:
        """Its buffers' rows of the tokens from `start` to `stop`; none if the model does not use
        the layer. A window has a `snapshot` instead."""
        return tuple(array[..., start:stop, :] for array in self.state)

    def forms(self, tokens: int) -> tuple[Any, Any]:
        """The forms of its `rows` of this many tokens before and after quantization, if there is
        one. The cache must hold a token."""
        return (form_of_rows(self.rows(0, 1), tokens),) * 2

    def append_rows(self, rows: Sequence[mx.array]) -> None:
        """Appends what `rows` of a layer of the same kind returned."""
        if rows:
            keys, values = rows
            self.update_and_fetch(keys, values)

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The arrays to evaluate. Keep no reference: see the class."""
        return () if self.keys is None or self.values is None else (self.keys, self.values)

    def end_of(self, keys: mx.array) -> int:
        """How many tokens there are once `keys` are appended."""
        end = self.offset + keys.shape[2]
        check_room(end, self.capacity)
        return end

    def _buffers(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        held = self.held
        if held.keys is None or held.values is None:
            held.keys, held.values = self._allocate(keys, values, self.capacity)
        return held.keys, held.values

    def _allocate(self, keys: mx.array, values: mx.array, rows: int) -> tuple[mx.array, mx.array]:
        empty_keys, empty_values = (
            mx.zeros((*like.shape[:2], rows, like.shape[3]), dtype=like.dtype)
            for like in (keys, values)
        )
        self.nbytes = empty_keys.nbytes + empty_values.nbytes
        return empty_keys, empty_values
