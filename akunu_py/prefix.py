"""PrefixSlot: a cache together with the tokens in it, kept from one request for the next."""

from collections.abc import Sequence

from akunu_py.kv_cache import ForwardOnlyKVCache, KVCache
from akunu_py.model import TargetModel


class PrefixSlot:
    """Remembers which tokens its cache holds, so that a shared prefix is computed once.

    Args:
        model: whose cache it is.
        capacity: how many tokens it can hold.
    """

    def __init__(self, model: TargetModel, capacity: int) -> None:
        self._model = model
        self._tokens: list[int] = []
        self.cache: KVCache = model.make_cache(capacity)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Prepares the cache for a prompt; returns how many of its tokens are in it already.

        At least the last token is left to compute, since its prediction is what a request needs.
        """
        shared = common_prefix_length(self._tokens, prompt)
        shared = min(shared, self.cache.length, len(prompt) - 1)
        if shared < self.cache.length:
            shared = self._rollback(shared)
        self._tokens = list(prompt[:shared])
        return shared

    def settle(self, tokens: Sequence[int]) -> None:
        """Books what the cache holds after a request: `tokens` as far as they were computed."""
        kept = min(self.cache.length, len(tokens))
        if kept < self.cache.length:
            kept = self._rollback(kept)
        self._tokens = list(tokens[:kept])

    def grow(self, capacity: int) -> None:
        """Makes room for more tokens."""
        if isinstance(self.cache, ForwardOnlyKVCache):
            self.cache.capacity = capacity  # its layers grow by themselves
        else:
            self.cache.grow(capacity)

    def forget(self) -> None:
        """Forgets the tokens, so that the next prompt is computed whole; the buffers stay."""
        self._tokens = []

    def clear(self) -> None:
        """Forgets everything, buffers included."""
        self.cache = self._model.make_cache(self.cache.capacity)
        self._tokens = []

    def _rollback(self, length: int) -> int:
        if isinstance(self.cache, ForwardOnlyKVCache):
            self.clear()
            return 0
        self.cache.rollback(length)
        return length


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    shared = min(len(left), len(right))
    for position in range(shared):
        if left[position] != right[position]:
            return position
    return shared
