"""The cache of an mlx-lm model: a cache for each kind of layer, what a rejection costs, and what
the model's head has read of a sequence and still has to read.

Pair `i` of a head is the model's hidden state of token `i` and the token `i + 1`. Pairs wait until
the head is asked, and are then read in one forward pass. Missing pairs count as zeros: that lowers
the acceptance rate but never changes a text.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import CacheList, ChunkedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.cache import KVCache as GrowingLayerCache

from akunu_py.cache.kv_cache import HeadPairs, KVCache, MakeLayers
from akunu_py.cache.layers import ChunkLayerCache, LayerCache, WindowLayerCache
from akunu_py.cache.quantized import QuantizedLayerCache
from akunu_py.cache.states import parts_of
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


ReadPairs = Callable[[mx.array, mx.array, KVCache], mx.array]
"""A head, as `model/head.py` has it: appends pairs to a cache; returns its state for each."""

_MOST_UNREAD: Final = 256
"""Once this many pairs wait, they are read without being asked for, because their hidden states
take memory."""

_FEW_UNREAD: Final = 8
"""If more pairs wait, the states of all but the last are not computed. That takes a second pass,
which is slower for few pairs; docs/decisions.md has the times."""


class HeadCache(HeadPairs):
    """The pairs of one sequence; they are dropped unless the head may be asked (`is_wanted`)."""

    def __init__(self, head: ReadPairs, pairs: KVCache) -> None:
        self._head = head
        self.pairs = pairs
        self.is_wanted = True
        self._hidden: list[mx.array] = []
        self._next: list[int] = []  # the token after each hidden state; of the last, maybe not yet
        self._start = self._end = 0  # the positions of the first of them, and after the last

    def note(self, hidden: mx.array, tokens: Sequence[int], at: int) -> None:
        """Takes the hidden states `[rows, hidden_size]` of tokens from position `at` on; `tokens`
        are these, and the one after them if it is known."""
        if not self.is_wanted:
            return
        if at != self._end:
            self.forget(at)
        if at != self._end:
            self._hidden, self._next, self._start = [], [], at
        self._end = at + len(hidden)
        del self._next[max(0, at - self._start - 1) :]
        if at > self._start:
            self._next.append(tokens[0])
        self._hidden.append(hidden)
        self._next.extend(tokens[1:])
        if len(self._next) >= _MOST_UNREAD:
            self.read()
            self.pairs.submit()

    def complete(self, token: int) -> None:
        """Adds the token after the last hidden state, if it is not known yet."""
        if self._start + len(self._next) < self._end:
            self._next.append(token)

    def read(self) -> mx.array | None:
        """Reads the waiting pairs; returns the lazy state of the last one, `[1, hidden_size]`, or
        None if none waits."""
        count = len(self._next)
        if not count:
            return None
        hidden = self._hidden[0] if len(self._hidden) == 1 else mx.concatenate(self._hidden)
        self.fill(self._start)
        self.pairs.rollback(self._start)
        tokens, first = mx.array(self._next), count - 1 if count > _FEW_UNREAD else 0
        if first:  # lazy: as their states are dropped, only what the cache keeps is computed
            self._head(tokens[:first], hidden[:first], self.pairs)
        states = self._head(tokens[first:], hidden[first:count], self.pairs)
        self._hidden = [hidden[count:]] if len(hidden) > count else []
        self._next, self._start = [], self._start + count
        return states[-1:]

    def has_room(self, pairs: int) -> bool:
        """Whether more pairs fit; guesses beyond the model's own cache are not worth growing it."""
        return self.pairs.length + pairs <= self.pairs.capacity

    def fill(self, length: int) -> None:
        """Counts missing pairs, up to a length."""
        start = self.pairs.length
        if length > start:
            for layer in parts_of(self.pairs.layers):
                for array in layer.state:  # it may have pairs of another text there
                    array[..., start:length, :] = 0
            self.pairs.skip(length - start)

    def forget(self, length: int) -> None:
        """Forgets every pair after the first `length`."""
        if length < self.pairs.length:
            self.pairs.rollback(length)
        if length < self._end:
            kept = max(0, length - self._start)
            self._hidden = [mx.concatenate(self._hidden)[:kept]] if kept else []
            del self._next[kept:]
            self._end = self._start + kept

    def copy(self, other: HeadPairs, length: int) -> None:
        """Becomes a copy of the pairs of another, up to a length."""
        other.read()
        self._hidden, self._next, self._end = [], [], self._start
        self.pairs.copy(other.pairs, min(length, other.pairs.length))
