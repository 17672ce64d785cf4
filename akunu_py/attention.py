"""The attentions of a network from mlx-lm: caches may answer them, and rows may be split.

mlx-lm's models call one function for every attention and name the layer's cache. A cache that has
a method `attend` is asked instead. And several rows may be computed in parts: MLX's kernel for few
rows reads a long context faster than the one for many, but serves only so many rows at once.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from threading import local
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from akunu_py.backend import VectorAttention

_NAME: Final = "scaled_dot_product_attention"
_ARGUMENTS: Final = ("scale", "mask", "sinks")

_active = local()


@dataclass
class RowSplit:
    """Which forwards compute their attentions in parts; calibration decides it.

    Attributes:
        limits: what the kernel for few rows serves.
        most_rows: by context, the most rows of a forward that is faster in parts.
        count: how many attentions have been computed in parts.
    """

    limits: VectorAttention
    most_rows: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def applies(self, rows: int, context: int) -> bool:
        """Whether a forward over `rows` tokens after `context` others is faster in parts."""
        known = [length for length in self.most_rows if length <= context]
        return rows <= self.most_rows[max(known)] if known else False


@contextmanager
def split_rows(split: RowSplit | None) -> Generator[None, None, None]:
    """Computes the attentions that this thread builds in the meantime in parts; None does not."""
    before, _active.split = getattr(_active, "split", None), split
    try:
        yield
    finally:
        _active.split = before


@contextmanager
def keys_of(owners: Mapping[int, Any]) -> Generator[None, None, None]:
    """Lets attentions without a cache, which share the keys of another layer, be answered by the
    cache in `owners` that has keys of this identity."""
    _active.owners = owners
    try:
        yield
    finally:
        _active.owners = {}


def intercept_attention(network: nn.Module) -> None:
    """Lets caches answer the attentions of a network from mlx-lm, and rows be split.

    The function is replaced in mlx-lm's modules for the whole process, by one that computes the
    same.
    """
    for layer in network.modules():
        module = sys.modules.get(type(layer).__module__)  # that of a model's own code may be absent
        attend = getattr(module, _NAME, None)
        if attend is not None and not hasattr(attend, "__wrapped__"):
            setattr(module, _NAME, _intercepted(attend))


def _intercepted(attend: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(attend)
    def intercepted(
        queries: mx.array, keys: Any, values: Any, cache: Any, *args: Any, **named: Any
    ) -> mx.array:
        if cache is None:
            cache = getattr(_active, "owners", {}).get(id(keys))
        own: Callable[..., mx.array] | None = getattr(cache, "attend", None)
        if own is not None:
            return own(intercepted, (queries, keys, values), *args, **named)
        split: RowSplit | None = getattr(_active, "split", None)
        if split is not None and isinstance(keys, mx.array):  # packed keys have no such kernel
            most = split.limits.most_rows(queries.shape[1] // keys.shape[1])
            if 0 < most < queries.shape[2]:
                split.count += 1
                named |= zip(_ARGUMENTS, args, strict=False)
                return _in_parts(attend, most, (queries, keys, values), cache=cache, **named)
        return attend(queries, keys, values, cache, *args, **named)

    return intercepted


def _in_parts(
    attend: Callable[..., mx.array],
    most: int,
    inputs: tuple[mx.array, mx.array, mx.array],
    *,
    mask: Any = None,
    **named: Any,
) -> mx.array:
    """An attention, at most so many rows at a time.

    Args:
        attend: computes it for some of the rows.
        most: how many rows at a time.
        inputs: queries `[batch, heads, rows, head_dim]`, and keys and values of `total` positions.
        mask: `causal` for the last rows of the total, None if all is visible, or an array whose
            last two axes are the rows, or one for all of them, and the total.
        named: further arguments, which are the same for all rows.
    """
    queries, keys, values = inputs
    rows, total = queries.shape[2], keys.shape[2]
    size = -(-rows // -(-rows // most))  # parts of the same size, as far as possible
    parts = []
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        own_mask, seen = mask, total
        if isinstance(mask, str):
            seen = total - (rows - stop)
        elif mask is not None and mask.shape[-2] == rows:
            own_mask = mask[..., start:stop, :]
        parts.append(
            attend(
                queries[..., start:stop, :],
                keys[..., :seen, :],
                values[..., :seen, :],
                mask=own_mask,
                **named,
            )
        )
    return mx.concatenate(parts, axis=2)
