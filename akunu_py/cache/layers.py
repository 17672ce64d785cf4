"""The caches of single attention layers: keys and values in buffers, written in place.

They serve unmodified mlx-lm models. A rollback only moves a counter: what lies after it is
overwritten before it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from akunu_py.errors import ContextOverflowError

SLACK: Final = 256
"""Room in a window's buffers besides the window: it moves to their front once in this many
tokens."""

_KEPT: Final = 64
"""Tokens before the window that stay when it is moved: short rollbacks need no checkpoint."""


@dataclass(eq=False, slots=True)
class Buffers:
    """Keys and values, `[seats, kv_heads, rows, head_dim]` each; None before the first.

    Several sequences may have a seat each in the same buffers; see `LayerCache.join`.
    """

    keys: mx.array | None = None
    values: mx.array | None = None
    seats: int = 1


@dataclass(eq=False, slots=True)
class CacheGroup:
    """Caches that share buffers: at first `size` of them, each with room for `rows` tokens.

    The buffers stay as they are until all caches have `left`."""

    size: int
    rows: int
    left: int = 0


class LayerCache:
    """The keys and values of one layer with full attention.

    The two buffers have shape `[1, kv_heads, capacity, head_dim]` and the dtype of the first keys.
    MLX writes them in place only while nothing else holds a reference to them: never keep one, only
    slices. Names are mlx-lm's, because some of its models use them; `offset` counts the tokens.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offset = 0
        self.nbytes = 0  # no property, because every request asks all caches
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
        """Appends `[1, kv_heads, tokens, head_dim]`; returns all keys and values so far.

        Raises:
            ContextOverflowError: if the tokens do not fit; nothing is written then.
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
        """Moves its content to larger buffers of its own, if these are too small.

        If there is no memory for them, nothing changes.
        """
        keys = self.keys
        if keys is not None and capacity > keys.shape[2]:
            larger = LayerCache(capacity)
            larger.copy(self, self.offset)
            self.held, self._seat, self.nbytes = larger.held, larger._seat, larger.nbytes
        self.capacity = capacity

    @staticmethod
    def join(layers: "Sequence[LayerCache]") -> None:
        """Moves the content of several sequences, none of them empty, into shared buffers.

        One operation then appends to all of them, and one attends to them. Each can also be used
        as before.
        """
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
        if other.keys is None or other.values is None:
            return
        own_keys, own_values = self._buffers(other.keys, other.values)
        own_keys[self._seat, :, :tokens] = other.keys[..., :tokens, :]
        own_values[self._seat, :, :tokens] = other.values[..., :tokens, :]
        mx.eval(own_keys, own_values)
        self.offset = tokens

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """The causal mask for the next `tokens` positions, in the form mlx-lm's models expect."""
        return create_attention_mask(
            tokens, offset=self.offset, return_array=return_array, window_size=window_size
        )

    @property
    def kind(self) -> str:
        """Its type and sizes, in a word."""
        return type(self).__name__

    def rows(self, start: int, stop: int) -> tuple[mx.array, ...]:
        """Its buffers' rows of the tokens from `start` to `stop`, along axis 2.

        () if the model does not use the layer. A window has a `snapshot` instead.
        """
        return tuple(array[..., start:stop, :] for array in self.state)

    def append_rows(self, rows: Sequence[mx.array]) -> None:
        """Appends what `rows` of a layer of the same kind returned.

        Raises:
            ContextOverflowError: if they do not fit.
        """
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
        if end > self.capacity:
            raise ContextOverflowError(
                f"{end} tokens do not fit into a cache made for {self.capacity}."
            )
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


class WindowLayerCache(LayerCache):
    """The keys and values of one layer that attends to a sliding window.

    The buffers hold the first `keep` tokens and the last ones in order: the window and `SLACK`
    more, or the window and one forward if that is larger. A forward can always be rolled back, and
    at least 64 tokens before it; an earlier length needs a `snapshot`.

    Args:
        capacity: tokens that the context may have.
        window: how many tokens a position attends to, itself and the first `keep` included.
        keep: how many first tokens every position attends to (attention sinks, see
            https://arxiv.org/abs/2309.17453).
    """

    def __init__(self, capacity: int, window: int, keep: int = 0) -> None:
        super().__init__(capacity)
        self.window = window
        self.keep = keep
        self.lookback = window - keep - 1
        """How many of the tokens just before a forward its first position attends to."""
        self._dropped = 0  # how many tokens after the first `keep` have left the buffers
        self._visible = slice(0, 0)  # the rows of the buffers that the last forward attends to

    @property
    def floor(self) -> int:
        return self._dropped + self.keep + self.lookback if self._dropped else 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends tokens; returns the keys and values that any of them attends to.

        Raises:
            ContextOverflowError: if the tokens do not fit; nothing is written then.
        """
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
        """What `update_and_fetch` returned last, for layers that share it."""
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
        """Keys and values that forwards after the first `tokens` attend to, or after all."""
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

    def restore(self, snapshot: tuple[mx.array, ...], tokens: int) -> None:
        """Holds what `snapshot` returned when there were `tokens` tokens."""
        if not snapshot:  # the model does not use this layer
            return
        # Arrays of their own: later writes must not reach the snapshot.
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
        """Moves the window to the front of new buffers that have room for more."""
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
        """The position of the first key that the next forward gets."""
        return max(0, self.offset - self.lookback)

    def maybe_trim_front(self) -> None:
        """Does nothing: mlx-lm's model calls it, but `update_and_fetch` returns no more."""
