"""The attentions of a network from mlx-lm: caches may answer them, and few rows may go other ways.

mlx-lm's models call one function for every attention and name the layer's cache. A cache that has
a method `attend` is asked instead. And where MLX is slow, several rows are computed in another way:

- in parts on Metal: its kernel for few rows reads a long context faster than the one for many, but
  serves only so many rows at once;
- as two products on CUDA: in 16 bits, cuDNN makes a plan for every number of keys.
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

from akunu_py.machine.backend import MOST_ROUND_TOKENS, Backend, VectorAttention

_NAME: Final = "scaled_dot_product_attention"
_ARGUMENTS: Final = ("scale", "mask", "sinks")
_TWO_BYTES: Final = 2

_active = local()

Attend = Callable[..., mx.array]
"""mlx-lm's function: queries `[batch, heads, rows, head_dim]`, keys and values of fewer heads and
`total` positions, and by name `cache`, `scale`, `mask` and perhaps `sinks`. The mask is `causal`
for the last rows of the total, None if all is visible, or an array whose last two axes are the
rows, or one for all of them, and the total."""
Inputs = tuple[mx.array, mx.array, mx.array]


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

    def attend(self, attend: Attend, inputs: Inputs, **named: Any) -> mx.array:
        """What `attend` returns for queries, keys and values, computed in parts if it can be."""
        queries, keys, _ = inputs
        most = self.limits.most_rows(queries.shape[1] // keys.shape[1])
        if not 0 < most < queries.shape[2]:
            return attend(*inputs, **named)
        self.count += 1
        return _in_parts(attend, most, inputs, **named)


class TwoProducts:
    """Computes attentions of 2 to `MOST_ROUND_TOKENS` rows in 16 bits by general operations.

    The scores, the mask and the softmax are in float32.
    """

    def applies(self, rows: int, context: int) -> bool:
        """Whether a forward over `rows` tokens may have such attentions, after any context."""
        return 1 < rows <= MOST_ROUND_TOKENS

    def attend(
        self,
        attend: Attend,
        inputs: Inputs,
        *,
        scale: float,
        mask: Any = None,
        sinks: mx.array | None = None,
        **named: Any,
    ) -> mx.array:
        """What `attend` returns for queries, keys and values; it computes sinks and float32."""
        queries, keys, values = inputs
        batch, heads, rows, width = queries.shape
        if rows == 1 or sinks is not None or queries.dtype.size != _TWO_BYTES:
            return attend(*inputs, scale=scale, mask=mask, sinks=sinks, **named)
        shared, total = keys.shape[1:3]
        grouped = queries.astype(mx.float32).reshape(batch, shared, -1, width)
        scores = grouped @ keys.astype(mx.float32).swapaxes(-1, -2)
        scores = scale * scores.reshape(batch, heads, rows, total)
        if isinstance(mask, str):
            mask = mx.arange(total) <= mx.arange(total - rows, total)[:, None]
        if mask is not None and mask.dtype == mx.bool_:
            scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
        elif mask is not None:
            scores = scores + mask
        weights = mx.softmax(scores, axis=-1).astype(values.dtype)
        mixed = weights.reshape(batch, shared, -1, total) @ values
        return mixed.reshape(batch, heads, rows, -1)


FewRows = RowSplit | TwoProducts
"""Another way to compute the attentions of a forward over few tokens."""


def few_rows_of(backend: Backend) -> FewRows | None:
    """The other way that is faster on a machine, or may be; None if there is none."""
    if backend.vector_attention is not None:
        return RowSplit(backend.vector_attention)
    return TwoProducts() if backend.plans_attention else None


@contextmanager
def attending(way: FewRows | None) -> Generator[None, None, None]:
    """Inside the `with`, this thread builds its attentions in this way; None is the usual one."""
    before, _active.way = getattr(_active, "way", None), way
    try:
        yield
    finally:
        _active.way = before


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
    """Lets caches answer the attentions of a network from mlx-lm, and few rows go another way.

    The function is replaced in mlx-lm's modules for the whole process, by one that computes the
    same.
    """
    for layer in network.modules():
        module = sys.modules.get(type(layer).__module__)  # that of a model's own code may be absent
        attend = getattr(module, _NAME, None)
        if attend is not None and not hasattr(attend, "__wrapped__"):
            setattr(module, _NAME, _intercepted(attend))


def _intercepted(attend: Attend) -> Attend:
    @wraps(attend)
    def intercepted(
        queries: mx.array, keys: Any, values: Any, cache: Any, *args: Any, **named: Any
    ) -> mx.array:
        if cache is None:
            cache = getattr(_active, "owners", {}).get(id(keys))
        own: Attend | None = getattr(cache, "attend", None)
        if own is not None:
            return own(intercepted, (queries, keys, values), *args, **named)
        way: FewRows | None = getattr(_active, "way", None)
        if way is not None and isinstance(keys, mx.array):  # packed keys have no such kernel
            named |= zip(_ARGUMENTS, args, strict=False)
            return way.attend(attend, (queries, keys, values), cache=cache, **named)
        return attend(queries, keys, values, cache, *args, **named)

    return intercepted


def _in_parts(
    attend: Attend, most: int, inputs: Inputs, *, mask: Any = None, **named: Any
) -> mx.array:
    """An attention, at most so many rows at a time; arguments that are not named here are the same
    for all rows."""
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
