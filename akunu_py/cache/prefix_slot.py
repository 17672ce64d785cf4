"""PrefixSlot: a cache together with the tokens in it, kept from one request for the next."""

from collections.abc import Sequence
from typing import Final

from akunu_py.cache.kv_cache import ForwardOnlyKVCache, PreallocatedKVCache
from akunu_py.model import TargetModel

_STRIDE: Final = 256


class PrefixSlot:
    """Remembers which tokens its cache holds, so that a shared prefix is computed once.

    Args:
        model: whose cache it is.
        capacity: how many tokens it can hold; it can grow.
        slot_id: what it is called.
    """

    def __init__(self, model: TargetModel, capacity: int, slot_id: int = 0) -> None:
        self.id = slot_id
        self.cache = model.make_cache(capacity)
        self._model = model
        self._tokens: list[int] = []

    @property
    def held(self) -> int:
        """How many tokens it remembers."""
        return len(self._tokens)

    def usable(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed again.

        At least the last one must: its prediction is what a request needs.
        """
        shared = min(common_prefix_length(self._tokens, prompt), len(prompt) - 1)
        whole = shared == self.cache.length
        return shared if whole or self.cache.can_roll_back else 0

    def reuse(self, prompt: Sequence[int]) -> int:
        """Prepares the cache for a prompt; returns how many of its tokens are in it already."""
        shared = self.usable(prompt)
        self._roll_back(shared)
        self._tokens = list(prompt[:shared])
        return shared

    def copy(self, other: "PrefixSlot", tokens: int) -> None:
        """Becomes the first `tokens` of another slot, where caches can be cut."""
        own, others = self.cache, other.cache
        if isinstance(own, PreallocatedKVCache) and isinstance(others, PreallocatedKVCache):
            own.copy(others, tokens)
            self._tokens = other._tokens[:tokens]

    def settle(self, tokens: Sequence[int]) -> None:
        """Books what the cache holds after a request: `tokens` as far as they were computed."""
        kept = min(self.cache.length, len(tokens))
        if kept < self.cache.length and not self.cache.can_roll_back:
            kept = 0
        self._roll_back(kept)
        self._tokens = list(tokens[:kept])

    def grow(self, capacity: int) -> None:
        """Makes room for more tokens."""
        if isinstance(self.cache, ForwardOnlyKVCache):
            self.cache.capacity = capacity  # its layers grow by themselves
        else:
            self.cache.grow(capacity)

    def _roll_back(self, length: int) -> None:
        if length == self.cache.length:
            return
        if isinstance(self.cache, ForwardOnlyKVCache):
            self.cache = self._model.make_cache(self.cache.capacity)
        else:
            self.cache.rollback(length)


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    most = min(len(left), len(right))
    shared = 0
    while shared < most and left[shared : shared + _STRIDE] == right[shared : shared + _STRIDE]:
        shared += _STRIDE  # comparing stretches is much faster than comparing tokens
    while shared < most and left[shared] == right[shared]:
        shared += 1
    return min(shared, most)
