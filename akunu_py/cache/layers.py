"""The caches of one layer of unmodified mlx-lm models: keys and values in buffers, written in
place, of full attention, a sliding window, or chunks of the text.

A rollback only moves a counter: what lies beyond it is overwritten before it is read. The buffers
of windows and chunks have some slack for that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

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


SLACK: Final = 256
"""Extra room in a window's buffers: the window moves to the front once in this many tokens."""

_KEPT: Final = 64
"""Tokens before the window that are kept when it moves, so that short rollbacks need no
checkpoint."""


class WindowLayerCache(LayerCache):
    """The keys and values of one layer that attends to a sliding window, and to the first `keep`
    tokens (attention sinks, https://arxiv.org/abs/2309.17453).

    The buffers hold these and the last ones in order: the window and `SLACK` more, or the window
    and one forward pass if that is larger. A rollback can always undo a forward pass and at least
    64 tokens before it; an earlier length needs a `snapshot`.
    """

    def __init__(self, capacity: int, window: int, keep: int = 0) -> None:
        super().__init__(capacity)
        self.window = window
        self.keep = keep
        self.lookback = window - keep - 1
        """How many tokens just before a forward pass its first position attends to."""
        self._dropped = 0  # how many tokens after the first `keep` have left the buffers
        self._visible = slice(0, 0)  # the rows of the buffers that the last forward attends to

    @property
    def floor(self) -> int:
        return self._dropped + self.keep + self.lookback if self._dropped else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends tokens; returns the keys and values that any of them attends to."""
        end = self.end_of(keys)
        if self.keys is None or self._is_full(keys.shape[2]):
            self._make_room(keys, values)
        assert self.keys is not None
        assert self.values is not None
        start, stop = self.offset - self._dropped, end - self._dropped
        self.keys[..., start:stop, :] = keys
        self.values[..., start:stop, :] = values
        self._visible = slice(0 if self.keep else start - min(self.offset, self.lookback), stop)
        self.offset = end
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None
        assert self.values is not None
        return self.keys[..., self._visible, :], self.values[..., self._visible, :]

    @property
    def kind(self) -> str:
        return f"{super().kind}({self.window}, {self.keep})"

    def rows(self, start: int, stop: int) -> tuple[mx.array, ...]:
        return ()

    def rollback(self, to: int) -> None:
        super().rollback(to)
        if not to:
            self._dropped = 0

    def skip(self, tokens: int) -> None:
        super().skip(tokens)
        self._dropped = max(self._dropped, self.offset - self.keep - self.lookback)

    def grow(self, capacity: int) -> None:
        self.capacity = capacity

    def copy(self, other: LayerCache, tokens: int) -> None:
        assert isinstance(other, WindowLayerCache)
        self.restore(other.snapshot(tokens), tokens)

    def snapshot(self, tokens: int | None = None) -> tuple[mx.array, ...]:
        """The keys and values that later forward passes attend to, after the first `tokens` or
        after all."""
        if self.keys is None or self.values is None:
            return ()
        stop = (self.offset if tokens is None else tokens) - self._dropped
        head = min(self.keep, stop)
        start = max(head, stop - self.lookback)
        kept = tuple(
            mx.concatenate([held[..., :head, :], held[..., start:stop, :]], axis=2)
            for held in (self.keys, self.values)
        )
        mx.eval(kept)
        return kept

    def snapshot_form(self, tokens: int) -> tuple[Any, ...]:
        """The form of its `snapshot` of this many tokens; it must hold a token."""
        return form_of_rows(self.snapshot(), min(tokens, self.keep + self.lookback))

    def restore(self, snapshot: tuple[mx.array, ...], tokens: int) -> None:
        """Restores what `snapshot` returned when there were `tokens` tokens."""
        if not snapshot:  # the model does not use this layer
            return
        # New arrays, because later writes must not reach the snapshot.
        self.keys, self.values = map(mx.array, snapshot)
        self.offset, self._dropped = tokens, tokens - self.keys.shape[2]
        self.nbytes = self.keys.nbytes + self.values.nbytes

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """The mask over what `update_and_fetch` will return; None if everything is visible."""
        window = min(window_size or self.window, self.window)
        if self.keep and self.offset + tokens > window:
            return self._mask_beyond(tokens, window)
        seen = min(self.offset, self.lookback + self.keep)
        if tokens == 1 and seen < window and not return_array:
            return None
        if seen + tokens > window or return_array:
            return create_attention_mask(tokens, offset=seen, return_array=True, window_size=window)
        return "causal"

    def _mask_beyond(self, tokens: int, window: int) -> mx.array:
        """The mask `[tokens, rows]` of a window that has left tokens behind the first `keep`."""
        rows = mx.arange(self.offset + tokens - self._dropped_by(tokens))
        positions = mx.where(rows < self.keep, rows, rows + self._dropped_by(tokens))
        queries = mx.arange(self.offset, self.offset + tokens)[:, None]
        recent = positions > queries - (window - self.keep)
        return (positions <= queries) & (recent | (positions < self.keep))

    def _is_full(self, tokens: int) -> bool:
        rows = 0 if self.keys is None else self.keys.shape[2]
        return self.offset + tokens - self._dropped > rows

    def _dropped_by(self, tokens: int) -> int:
        """What `_dropped` will be once this many more tokens have arrived."""
        if self.keys is None or not self._is_full(tokens):
            return self._dropped
        return max(self._dropped, self.offset - self.keep - self.lookback - _KEPT)

    def _make_room(self, keys: mx.array, values: mx.array) -> None:
        stop, dropped = self.offset - self._dropped, self._dropped_by(keys.shape[2])
        start = min(self.keep + dropped - self._dropped, stop)
        kept = self.offset - dropped
        rows = max(min(self.capacity, self.window + SLACK), kept + keys.shape[2])
        old_keys, old_values = self.keys, self.values
        self.keys, self.values = self._allocate(keys, values, rows)
        for new, old in ((self.keys, old_keys), (self.values, old_values)):
            if kept and old is not None:
                head = min(self.keep, kept)
                new[..., :head, :] = old[..., :head, :]
                new[..., head:kept, :] = old[..., start:stop, :]
        self._dropped = dropped


class ChunkLayerCache(WindowLayerCache):
    """The keys and values of one layer that attends within chunks of the text (Llama 4).

    The model makes its own mask, from the position that the keys begin at.
    """

    def __init__(self, capacity: int, chunk_size: int) -> None:
        super().__init__(capacity, chunk_size)
        self.lookback = chunk_size

    @property
    def start_position(self) -> int:
        """The position of the first key that the next forward pass gets."""
        return max(0, self.offset - self.lookback)

    def maybe_trim_front(self) -> None:
        """Does nothing: mlx-lm's model calls it, but `update_and_fetch` returns no more."""
