"""The caches of layers that attend to a sliding window, or within chunks of the text.

Their buffers hold the window and some slack, so that short rollbacks only move a counter.
"""

from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from akunu_py.cache.layers import LayerCache
from akunu_py.cache.states import form_of_rows

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
        """The position of the first key that the next forward pass gets."""
        return max(0, self.offset - self.lookback)

    def maybe_trim_front(self) -> None:
        """Does nothing: mlx-lm's model calls it, but `update_and_fetch` returns no more."""
