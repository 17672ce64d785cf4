"""The cache of an mlx-lm model: a cache for each kind of layer, and what a rejection costs."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from mlx import nn
from mlx_lm.models.cache import CacheList, ChunkedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.cache import KVCache as GrowingLayerCache

from akunu_py.cache.kv_cache import KVCache, MakeLayers
from akunu_py.cache.layers import LayerCache
from akunu_py.cache.quantized import QuantizedLayerCache
from akunu_py.cache.windows import ChunkLayerCache, WindowLayerCache
from akunu_py.options import KVQuantization

KEPT_TOKENS: Final = 4
"""How many tokens at the beginning a bounded cache keeps, as in mlx-lm."""


class Rollback(StrEnum):
    """What a rollback after a rejected draft costs."""

    COUNTER = "free"
    RECURRENCE = "the recurrence is repeated, from recorded inputs"
    REPLAY = "the accepted tokens are computed again, with the next draft"
    NONE = "not possible, so nothing is drafted"


def make_kv_cache(
    model: nn.Module,
    capacity: int,
    quantization: KVQuantization | None = None,
    max_size: int | None = None,
    make: Callable[[MakeLayers, int], KVCache] = KVCache,
) -> KVCache:
    """The cache for an mlx-lm model: our caches where possible, else mlx-lm's own.

    Sliding windows and recurrent states do not grow, so they are neither quantized nor bounded.
    Layers with full attention can be quantized, or keep `max_size` tokens, the first `KEPT_TOKENS`
    included.
    """

    def make_layers(capacity: int) -> list[Any]:
        return [_layer(own, capacity, quantization, max_size) for own in make_prompt_cache(model)]

    return make(make_layers, capacity)


def no_rollback_reason(cache: KVCache) -> str | None:
    """A line for the user if a cache cannot be rolled back; None if it can."""
    if cache.can_rollback:
        return None
    return (
        f"Speculation is off: this model keeps its context in {' and '.join(cache.unknown_kinds)}, "
        "which cannot be rolled back to drop a rejected draft."
    )


def _layer(
    own: Any, capacity: int, quantization: KVQuantization | None, max_size: int | None
) -> Any:
    if type(own) is GrowingLayerCache:
        if max_size is not None:
            return WindowLayerCache(capacity, max_size, KEPT_TOKENS)
        return QuantizedLayerCache(capacity, quantization) if quantization else LayerCache(capacity)
    if type(own) is RotatingKVCache:
        return WindowLayerCache(capacity, own.max_size, own.keep)
    if type(own) is ChunkedKVCache:
        return ChunkLayerCache(capacity, own.chunk_size)
    if type(own) is CacheList:
        if sum(type(part) is GrowingLayerCache for part in own.caches) > 1:
            max_size = None  # an indexer may choose any key by its position
        return CacheList(*(_layer(part, capacity, quantization, max_size) for part in own.caches))
    return own
