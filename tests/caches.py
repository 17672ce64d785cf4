"""Caches without a model, for tests that append to them by hand."""

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache


def attention_cache(layers: int, capacity: int) -> KVCache:
    """A cache of so many layers with full attention."""
    return KVCache(lambda capacity: [LayerCache(capacity) for _ in range(layers)], capacity)
