"""PreallocatedKVCache: keys and values in buffers, allocated once per layer and written in place.

It serves as the cache of unmodified mlx-lm models. Rolling back moves a counter: nothing is copied
or cleared, because what lies after the counter is overwritten before it is read.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache as GrowingLayerCache
from mlx_lm.models.cache import create_attention_mask, make_prompt_cache

from akunu_py.errors import ContextOverflowError


class LayerCache:
    """One layer's keys and values, as mlx-lm's attention layers use a cache.

    The two buffers have shape `[batch, kv_heads, capacity, head_dim]` and the dtype of the first
    keys that arrive. They are written in place, which MLX does only while nothing else holds a
    reference to them: never hand them out, only slices.

    `offset` counts the tokens in them.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.offset = 0
        self.nbytes = 0  # no property, because every request asks all caches
        self._buffers: tuple[mx.array, mx.array] | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Appends `[batch, kv_heads, tokens, head_dim]`; returns all keys and values so far.

        Raises:
            ContextOverflowError: if the tokens do not fit; nothing is written then.
        """
        start, end = self.offset, self.offset + keys.shape[2]
        if end > self.capacity:
            raise ContextOverflowError(
                f"{end} tokens do not fit into a cache made for {self.capacity}."
            )
        own_keys, own_values = self._buffers or self._allocate(keys, values)
        own_keys[..., start:end, :] = keys
        own_values[..., start:end, :] = values
        self.offset = end
        return own_keys[..., :end, :], own_values[..., :end, :]

    def grow(self, capacity: int) -> None:
        """Moves its content to larger buffers."""
        old = LayerCache(self.capacity)
        old._buffers, self._buffers = self._buffers, None
        self.capacity = capacity
        self.copy(old, self.offset)

    def copy(self, other: "LayerCache", tokens: int) -> None:
        """Copies the first `tokens` of another layer; they must fit."""
        if other._buffers is None:
            return
        keys, values = other._buffers
        own_keys, own_values = self._buffers or self._allocate(keys, values)
        own_keys[..., :tokens, :] = keys[..., :tokens, :]
        own_values[..., :tokens, :] = values[..., :tokens, :]
        mx.eval(own_keys, own_values)
        self.offset = tokens

    def make_mask(self, tokens: int, **options: Any) -> Any:
        """The causal mask for the next `tokens` positions, in the form mlx-lm's models expect."""
        return create_attention_mask(tokens, offset=self.offset, **options)

    @property
    def state(self) -> tuple[mx.array, ...]:
        """The arrays to evaluate after a prefill. Keep no reference: see the class."""
        return self._buffers or ()

    def _allocate(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Empty buffers for keys and values of these shapes."""
        empty_keys, empty_values = (
            mx.zeros((*like.shape[:2], self.capacity, like.shape[3]), dtype=like.dtype)
            for like in (keys, values)
        )
        self._buffers = empty_keys, empty_values
        self.nbytes = empty_keys.nbytes + empty_values.nbytes
        return self._buffers


class PreallocatedKVCache:
    """A model's whole cache, with room for `capacity` tokens: a counter over one `LayerCache` per
    layer."""

    can_roll_back = True

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(layers)]

    @property
    def length(self) -> int:
        """How many tokens are in the cache."""
        return self.layers[0].offset

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers; 0 before the first forward."""
        return sum(layer.nbytes for layer in self.layers)

    def rollback(self, to: int) -> None:
        """Forgets every token after the first `to`.

        Raises:
            ValueError: if `to` is negative or beyond `length`.
        """
        if not 0 <= to <= self.length:
            raise ValueError(f"Cannot roll a cache of {self.length} tokens back to {to}.")
        for layer in self.layers:
            layer.offset = to

    def skip(self, tokens: int) -> None:
        """Counts tokens that were never computed, to measure what a long context costs.

        Raises:
            ContextOverflowError: if they do not fit.
        """
        room = self.capacity - self.length
        if tokens > room:
            raise ContextOverflowError(
                f"{tokens} tokens do not fit into the {room} free places of the cache."
            )
        for layer in self.layers:
            layer.offset += tokens

    def grow(self, capacity: int) -> None:
        """Makes room for more tokens and keeps those it holds.

        Raises:
            ValueError: if `capacity` is below the present one.
        """
        if capacity < self.capacity:
            raise ValueError(f"A cache of {self.capacity} tokens cannot shrink to {capacity}.")
        for layer in self.layers:
            layer.grow(capacity)
        self.capacity = capacity

    def copy(self, other: "PreallocatedKVCache", tokens: int) -> None:
        """Becomes a copy of the first `tokens` of another cache of the same model.

        Raises:
            ValueError: if the other has fewer.
            ContextOverflowError: if they do not fit.
        """
        if tokens > other.length:
            raise ValueError(f"A cache of {other.length} tokens cannot give {tokens}.")
        if tokens > self.capacity:
            raise ContextOverflowError(
                f"{tokens} tokens do not fit into a cache made for {self.capacity}."
            )
        for own, others in zip(self.layers, other.layers, strict=True):
            own.copy(others, tokens)

    def advance(self, tokens: int) -> None:
        """Does nothing: the layers count the tokens of a forward themselves."""

    def evaluate(self) -> None:
        """Waits until everything appended so far has been computed."""
        mx.eval([layer.state for layer in self.layers])


class ForwardOnlyKVCache:
    """The cache of a model whose own caches cannot be rolled back: rotating, recurrent, hybrid.

    It is enough for plain decoding. To drop tokens, make a new one.
    """

    can_roll_back = False

    def __init__(self, layers: Sequence[Any], capacity: int) -> None:
        self.capacity = capacity
        self.layers = list(layers)
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(int(layer.nbytes) for layer in self.layers)

    def grow(self, capacity: int) -> None:
        """Allows more tokens; the model's own layers grow by themselves."""
        self.capacity = capacity

    def advance(self, tokens: int) -> None:
        """Counts the tokens of a forward."""
        self.length += tokens

    def evaluate(self) -> None:
        """Waits until everything appended so far has been computed."""
        mx.eval([layer.state for layer in self.layers])


KVCache = PreallocatedKVCache | ForwardOnlyKVCache


def make_kv_cache(model: nn.Module, capacity: int) -> KVCache:
    """The cache for an mlx-lm model: preallocated if the model's own could be rolled back."""
    own = make_prompt_cache(model)
    if all(type(layer) is GrowingLayerCache for layer in own):
        return PreallocatedKVCache(len(own), capacity)
    return ForwardOnlyKVCache(own, capacity)


def no_rollback_reason(cache: KVCache) -> str | None:
    """One line for the user if a cache cannot be rolled back; None if it can."""
    if cache.can_roll_back:
        return None
    kinds = sorted({type(layer).__name__ for layer in cache.layers} - {GrowingLayerCache.__name__})
    return (
        f"Speculation is off: this model keeps its context in {' and '.join(kinds)}, "
        "which cannot be rolled back to drop a rejected draft."
    )
