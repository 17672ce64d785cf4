"""BatchedLayer: one layer's caches of several sequences, as mlx-lm's models take them together.

Every token of a batched forward is a row of the batch: a model is called with ids `[rows, 1]`, and
each row has its own position. So no row is padding, however many tokens each sequence has. The
rows of a sequence are appended to its own cache and attend to that alone: joining or leaving a
batch copies nothing, a long context costs the others nothing, and a rollback moves one counter.
Keys are never put together in one buffer, so a network must leave its attentions to the cache; see
`attention.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import create_attention_mask

from akunu_py.cache.layers import LayerCache, WindowLayerCache


class BatchedRows:
    """Which rows of a forward belong to which sequence.

    Args:
        counts: how many rows each sequence has, 1 or more; they follow one another.
        lengths: how many tokens the cache of each sequence holds.

    Attributes:
        positions: the position of each row in its sequence.
        owners: the layers that were given keys, by the identity of these.
    """

    def __init__(self, counts: Sequence[int], lengths: Sequence[int]) -> None:
        self.counts = counts
        self.positions = [
            length + row
            for count, length in zip(counts, lengths, strict=True)
            for row in range(count)
        ]
        self.offset = mx.array(self.positions)
        self.owners: dict[int, BatchedLayer] = {}
        self._ends = list(accumulate(counts[:-1]))

    def split(self, rows: mx.array, axis: int) -> list[mx.array]:
        """The rows of each sequence."""
        if not self._ends:
            return [rows]
        return cast(list[mx.array], mx.split(rows, self._ends, axis=axis))


@dataclass(frozen=True)
class WindowMask:
    """Stands for the masks of a window of so many tokens."""

    size: int


class BatchedLayer:
    """What a model's layer is given as its cache in a batched forward.

    Args:
        layers: the layer's cache of each sequence.
        rows: whose rows the forward has.

    Attributes:
        appended: the keys and values that `update_and_fetch` was given.
    """

    def __init__(self, layers: Sequence[LayerCache], rows: BatchedRows) -> None:
        self.rows = rows
        self.offset = rows.offset
        self._layers = layers
        self.appended: tuple[Any, Any] = (None, None)
        self._seen: list[tuple[Any, Any, Any]] = []

    @property
    def has_window(self) -> bool:
        """Whether each sequence needs the mask of its own cache: it may not attend to all that
        `append_each` returns."""
        return any(isinstance(layer, WindowLayerCache) for layer in self._layers)

    def make_mask(
        self, tokens: int, return_array: bool = False, window_size: int | None = None
    ) -> "WindowMask | None":
        """No mask but for a window: each sequence gets the one that its own cache makes."""
        return None if window_size is None else WindowMask(window_size)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends keys and values `[rows, kv_heads, 1, head_dim]`, and returns them as they are.

        Raises:
            ContextOverflowError: if they do not fit into the cache of a sequence.
        """
        self.appended = keys, values
        self.rows.owners[id(keys)] = self
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
        """The output of an attention, of the shape of its queries, `[rows, heads, 1, head_dim]`.

        Raises:
            ValueError: if it is not over the keys that were appended, or has a mask of its own.
        """
        queries, *others = inputs
        window = mask.size if isinstance(mask, WindowMask) else None
        is_own = [array.shape for array in others] == [array.shape for array in self.appended]
        if not is_own or (mask is not None and window is None):
            raise ValueError("This attention is not over what its cache holds.")
        named = {"scale": scale} if sinks is None else {"scale": scale, "sinks": sinks}

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
        """Appends `[1, kv_heads, rows, head_dim]`, each sequence's rows to its own cache.

        Returns:
            All keys and values of each sequence.
        """
        own_keys, own_values = self.rows.split(keys, 2), self.rows.split(values, 2)
        return [
            layer.update_and_fetch(key, value)
            for layer, key, value in zip(self._layers, own_keys, own_values, strict=True)
        ]


def batched_layers(caches: Sequence[Sequence[Any]], rows: BatchedRows) -> list[BatchedLayer]:
    """The caches of several sequences, each with a cache for every layer, as a model takes them."""
    return [BatchedLayer(layers, rows) for layers in zip(*caches, strict=True)]
