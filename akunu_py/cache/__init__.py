"""The KV cache of a sequence, and the pool of caches that requests reuse."""
