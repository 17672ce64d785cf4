"""BatchedLayer: the caches of several sequences for one layer, as mlx-lm's models take them.

Every token of a batched forward pass is its own row: a model is called with ids `[rows, 1]`. The
rows of a sequence are appended to its own cache and attend only to that, so a long context costs
the others nothing. The network must leave its attentions to the cache; see `model/attention.py`.
If sequences of about the same length have joined their caches (`KVCache.join`) and have one token
each, one operation serves all. A model that reads its keys itself gets them padded, in a
`PaddedLayer`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import add
from typing import Any, Final, cast

import mlx.core as mx
from mlx_lm.models.cache import CacheList, create_attention_mask

from akunu_py.cache.batched_states import BatchedStates, StateRows
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache, WindowLayerCache, check_room

_MOST_PADDING: Final = 1.5
"""Caches are joined and attended to together if their number times the longest length is at most
this many times the sum of their lengths."""


class BatchedRows(StateRows):
    """The rows of a forward pass, `counts` of each sequence, in order, and where their keys go.
    `are_joined`: the caches are all those of a group, in the order of their seats, and each
    sequence has one row and about the same length, unless the forward pass pads anyway.
    """

    def __init__(
        self, counts: Sequence[int], caches: Sequence[KVCache], *, pads: bool = False
    ) -> None:
        super().__init__(counts)
        self.lengths = lengths = [cache.length for cache in caches]
        self.positions = [
            length + row
            for count, length in zip(counts, lengths, strict=True)
            for row in range(count)
        ]
        self.offset = mx.array(self.positions)
        self._most_keys = max(lengths) + 1
        group = caches[0].group
        self.are_joined = (
            group is not None
            and len(caches) == group.size
            and (pads or (len(caches) == sum(counts) and has_little_padding(lengths)))
            and all(one.group is group and one.seat == seat for seat, one in enumerate(caches))
        )
        self.shares = any(cache.group for cache in caches)

    def split(self, rows: mx.array, axis: int) -> list[mx.array]:
        if len(self.counts) == 1:
            return [rows]
        return cast(list[mx.array], mx.split(rows, self._firsts[1:], axis=axis))

    @cached_property
    def appended_at(self) -> mx.array:
        """Where rows are appended to joined caches, `[sequences, 1, longest, 1]`; the padding goes
        to the place of a sequence's last row, of which it is a copy."""
        return self.gather(self.offset[:, None, None, None], 2)

    @cached_property
    def _visible(self) -> mx.array:
        return mx.arange(self._most_keys) <= self.offset[:, None, None, None]

    def mask(self, window: int | None) -> mx.array | None:
        """The mask `[sequences, 1, 1, keys]` of joined caches; None if everything is visible."""
        if window is None:
            return self._visible if min(self.positions) + 1 < self._most_keys else None
        first = self.offset[:, None, None, None] - window
        return self._visible & (mx.arange(self._most_keys) > first)

    @cached_property
    def additive_mask(self) -> mx.array | None:
        """The same mask in a form to add to scores: `[sequences, 1, 1, 1, keys]`, with 0 or
        minus infinity."""
        mask = self.mask(None)
        return None if mask is None else mx.where(mask, 0.0, -mx.inf)[:, None]


def has_little_padding(lengths: Sequence[int]) -> bool:
    """Whether sequences of these lengths would have little padding in one buffer."""
    return len(lengths) * max(lengths) <= _MOST_PADDING * sum(lengths)


@dataclass(frozen=True)
class WindowMask:
    """Stands for the masks of a window of `size` tokens."""

    size: int


class BatchedLayer:
    """The cache that a layer gets in a batched forward pass, with the cache of each sequence."""

    def __init__(self, layers: Sequence[LayerCache], rows: BatchedRows) -> None:
        self.rows = rows
        self.offset = rows.offset
        self._layers = layers
        self.appended: tuple[Any, Any] = (None, None)
        self._seen: list[tuple[Any, Any, Any]] = []
        self._joined: tuple[Any, Any] = (None, None)

    @property
    def has_window(self) -> bool:
        """Whether each sequence needs its own cache's mask over what `append_each` returns."""
        return any(isinstance(layer, WindowLayerCache) for layer in self._layers)

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> "WindowMask | None":
        """Stands for a window's mask, or None: each sequence uses the one of its own cache."""
        return None if window_size is None else WindowMask(window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends keys and values `[rows, kv_heads, 1, head_dim]`, and returns them as they are."""
        self.appended = keys, values
        if self.rows.are_joined:
            self._joined = self.append_joined(keys, values)
            return keys, values
        # A mask is made before its cache has the new tokens.
        masks = [
            layer.make_mask(count)
            for layer, count in zip(self._layers, self.rows.counts, strict=True)
        ]
        held = self.append_each(keys.swapaxes(0, 2), values.swapaxes(0, 2))
        self._seen = [(*pair, mask) for pair, mask in zip(held, masks, strict=True)]
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What `update_and_fetch` returned, for layers that share it."""
        return self.appended

    def attend(
        self,
        attend: Callable[..., mx.array],
        inputs: tuple[mx.array, mx.array, mx.array],
        scale: Any,
        mask: Any = None,
        sinks: mx.array | None = None,
    ) -> mx.array:
        """The output of an attention, in the shape of its queries, `[rows, heads, 1, head_dim]`.
        Raises a ValueError if the attention is not over the appended keys or has its own mask."""
        queries, *others = inputs
        window = mask.size if isinstance(mask, WindowMask) else None
        is_own = [array.shape for array in others] == [array.shape for array in self.appended]
        if not is_own or (mask is not None and window is None):
            raise ValueError("This attention is not over the content of its cache.")
        named = {"scale": scale} if sinks is None else {"scale": scale, "sinks": sinks}
        if self.rows.are_joined:
            layer, made = self._layers[0], self.rows.mask(window)
            return attend(queries, *self._joined, cache=layer, mask=made, **named)

        parts = []
        split = self.rows.split(queries.swapaxes(0, 2), 2)
        for layer, rows, (keys, values, made) in zip(self._layers, split, self._seen, strict=True):
            tokens, own = rows.shape[2], made
            if window is not None and type(layer) is LayerCache:
                own = create_attention_mask(
                    tokens, layer.offset - tokens, return_array=False, window_size=window
                )
            parts.append(attend(rows, keys, values, cache=layer, mask=own, **named))
        return mx.concatenate(parts, axis=2).swapaxes(0, 2)

    def append_each(self, keys: mx.array, values: mx.array) -> list[tuple[Any, Any]]:
        """Appends `[1, kv_heads, rows, head_dim]`, each sequence's rows to its own cache; returns
        all keys and values of each."""
        own_keys, own_values = self.rows.split(keys, 2), self.rows.split(values, 2)
        parts = zip(self._layers, own_keys, own_values, strict=True)
        if not self.rows.shares:
            return [layer.update_and_fetch(key, value) for layer, key, value in parts]
        for layer, key, value in parts:  # in place only while nothing reads the shared buffers
            layer.append(key, value)
        return [layer.keys_and_values() for layer in self._layers]

    def append_joined(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends `[sequences, kv_heads, 1, head_dim]`, a row to each of the joined caches; returns
        the keys and values of all, up to the longest."""
        ends = [layer.end_of(keys) for layer in self._layers]
        return _append_shared(self._layers, self.rows.appended_at, keys, values, ends)


class PaddedLayer:
    """The cache of a layer whose network reads its keys itself, as latent attention does.

    Each row gets all keys and values of its sequence, padded at the end, and a mask. An attention
    over just these gathers the rows of each sequence.
    """

    def __init__(self, layers: Sequence[LayerCache], rows: BatchedRows) -> None:
        if any(type(layer) is not LayerCache for layer in layers):
            raise ValueError("These caches do not return all of their keys.")
        self.offset = rows.offset
        self.appended: tuple[Any, Any] = (None, None)
        self._held: tuple[Any, Any] = (None, None)
        self._layers, self._rows = layers, rows
        self._total = max(map(add, rows.lengths, rows.counts))

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array:
        positions, keys = self.offset[:, None, None, None], mx.arange(self._total)
        mask = keys <= positions
        return mask if window_size is None else mask & (keys > positions - window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends `[rows, kv_heads, 1, head_dim]`; returns all of each row's sequence, up to the
        longest: `[rows, kv_heads, longest, head_dim]`."""
        rows = self._rows
        self._held = self._append(rows.gather(keys, 2), rows.gather(values, 2))
        self.appended = rows.for_rows(self._held[0]), rows.for_rows(self._held[1])
        return self.appended

    def attend(
        self,
        attend: Callable[..., mx.array],
        inputs: tuple[mx.array, mx.array, mx.array],
        scale: Any,
        mask: Any = None,
    ) -> mx.array:
        """The output of an attention, `[rows, heads, 1, head_dim]`."""
        queries, *others = inputs
        layer, rows = self._layers[0], self._rows
        held = [
            own
            for array in others
            for own, appended in zip(self._held, self.appended, strict=True)
            if array is appended
        ]
        if len(held) < len(others):
            return attend(queries, *others, cache=layer, scale=scale, mask=mask)
        gathered, mask = rows.gather(queries, 2), rows.gather(mask, 2)
        return rows.scatter(attend(gathered, *held, cache=layer, scale=scale, mask=mask), 2)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        return self.appended

    def _append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        counts, layers = self._rows.counts, self._layers
        ends = [layer.offset + count for layer, count in zip(layers, counts, strict=True)]
        if not self._rows.are_joined:
            held: tuple[list[mx.array], list[mx.array]] = [], []
            for seat, (layer, count) in enumerate(zip(layers, counts, strict=True)):
                own = (part[seat : seat + 1, :, :count] for part in (keys, values))
                fill = self._total - ends[seat]
                for whole, part in zip(held, layer.update_and_fetch(*own), strict=True):
                    padding = [(0, 0), (0, 0), (0, fill), (0, 0)]
                    whole.append(mx.pad(part, padding) if fill else part)
            return mx.concatenate(held[0]), mx.concatenate(held[1])
        for layer, end in zip(layers, ends, strict=True):
            check_room(end, layer.capacity)
        return _append_shared(layers, self._rows.appended_at, keys, values, ends)


def _append_shared(
    layers: Sequence[LayerCache], at: mx.array, keys: mx.array, values: mx.array, ends: list[int]
) -> tuple[mx.array, mx.array]:
    """Returns all keys and values up to the longest of the `ends`."""
    shared, longest = layers[0].held, max(ends)
    assert shared.keys is not None
    assert shared.values is not None
    shared.keys = mx.put_along_axis(shared.keys, at, keys, axis=2)
    shared.values = mx.put_along_axis(shared.values, at, values, axis=2)
    for layer, end in zip(layers, ends, strict=True):
        layer.offset = end
    return shared.keys[:, :, :longest], shared.values[:, :, :longest]


class BatchedCaches:
    """The caches of several sequences for one forward pass over `[rows, 1]` tokens, with `counts`
    rows of each. If it `pads`, networks get keys to read. A model is called with `layers`; a
    `recorder`, where a layer needs one, goes to `record`.
    """

    def __init__(
        self, caches: Sequence[KVCache], counts: Sequence[int], *, pads: bool = False
    ) -> None:
        self._caches = caches
        self._pads = pads
        self._rows = BatchedRows(counts, caches, pads=pads)
        stack = caches[0].stack
        is_same = stack is not None and all(cache.stack is stack for cache in caches)
        self._before = iter(stack if is_same and stack is not None else ())
        self.attention: list[BatchedLayer | PaddedLayer] = []
        self._states: list[BatchedStates] = []
        self.layers = [
            self._batched(layers) for layers in zip(*(one.layers for one in caches), strict=True)
        ]
        has_order = bool(self._states) and self._rows.longest > 1
        self.recorder = self._rows if has_order else None

    def advance(self) -> None:
        """Counts the tokens of the forward pass that was built, and hands out the states."""
        recordings = [cache.recording for cache in self._caches]
        for part in self._states:
            part.settle(recordings)
        for cache, count in zip(self._caches, self._rows.counts, strict=True):
            cache.advance(count, self._states or None)

    def _batched(self, parts: Sequence[Any]) -> Any:
        if isinstance(parts[0], CacheList):
            inner = zip(*(part.caches for part in parts), strict=True)
            return CacheList(*map(self._batched, inner))
        if isinstance(parts[0], LayerCache):
            layer = PaddedLayer if self._pads else BatchedLayer
            self.attention.append(layer(parts, self._rows))
            return self.attention[-1]
        self._states.append(BatchedStates(parts, self._rows, next(self._before, None)))
        return self._states[-1]
