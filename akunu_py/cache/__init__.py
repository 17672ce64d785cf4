"""The KV cache of one sequence, and the pool of caches that requests share."""
