"""Checkpoint: what it takes to return a cache to an earlier length, as trees of arrays."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import CacheList

_SCALARS: Final = (bool, int, float, str, type(None))


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What it takes to return a cache to an earlier length.

    Attributes:
        length: how many tokens it held.
        states: the attributes of each cache that is not a `LayerCache`.
        windows: what each sliding window held; None if they were not copied, so that the
            checkpoint works only while they still hold it.
    """

    length: int
    states: tuple[dict[str, Any], ...]
    windows: tuple[tuple[mx.array, ...], ...] | None

    @cached_property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in arrays_of([*self.states, self.windows]))


def is_plain(value: Any) -> bool:
    """Whether `copy_of` copies all of a value."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, (mx.array, *_SCALARS))


def copy_of(value: Any) -> Any:
    """A copy of a tree that later writes to the original do not change; memory is shared until
    then."""
    if isinstance(value, dict):
        return {name: copy_of(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copy_of, value))
    return mx.array(value) if isinstance(value, mx.array) else value


def arrays_of(value: Any) -> Iterator[mx.array]:
    """The arrays of a tree of containers."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, dict | list | tuple):
        for held in value.values() if isinstance(value, dict) else value:
            yield from arrays_of(held)


def parts_of(layers: Sequence[Any]) -> Iterator[Any]:
    """The single caches of a list that may have lists in it."""
    for layer in layers:
        yield from parts_of(layer.caches) if isinstance(layer, CacheList) else (layer,)
