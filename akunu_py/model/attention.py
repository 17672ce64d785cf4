"""Replaces the attention of mlx-lm's networks, in one place: for batches and for row splits.

mlx-lm's models call one function for every attention and pass the layer's cache. If the cache has a
method `attend`, as in a batch, that computes the attention instead. In a forward pass with a
`RowSplit`, a few rows are computed at a time.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from threading import local
from typing import Any, Final

import mlx.core as mx
from mlx import nn

from akunu_py.machine.backend import VectorAttention

MOST_APART: Final = 64
"""Up to so many tokens of one sequence go through latent attention as a batch of single tokens: 4
take 36 ms instead of 112 after 2,000 others, 32 take 160 instead of 204 (deepseek_v3, 40 million
parameters, two cores of an EPYC)."""
_NAME: Final = "scaled_dot_product_attention"
_ARGUMENTS: Final = ("scale", "mask", "sinks")

Attend = Callable[..., mx.array]
"""mlx-lm's function. It takes queries `[batch, heads, rows, head_dim]`, keys and values of fewer
heads and `total` positions, and by name `cache`, `scale`, `mask` and perhaps `sinks`. The mask is
`causal` for the last rows of the total, None if all is visible, or an array whose last two axes are
the rows (or 1) and the total."""
Inputs = tuple[mx.array, mx.array, mx.array]


@dataclass
class RowSplit:
    """Computes an attention over several rows in parts, where calibration found that faster:
    Metal's kernel for few rows reads a long context faster than the one for many.

    `most_rows` has, by context, the most rows of a forward pass that is faster in parts; `count`
    counts the attentions computed in parts.
    """

    limits: VectorAttention
    most_rows: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def applies(self, rows: int, context: int) -> bool:
        """Whether a forward pass over `rows` tokens after `context` others is faster in parts."""
        known = [length for length in self.most_rows if length <= context]
        return rows <= self.most_rows[max(known)] if known else False

    def attend(self, attend: Attend, inputs: Inputs, *, mask: Any = None, **named: Any) -> mx.array:
        """The result of `attend`, computed in parts if there are more rows than the limits
        allow."""
        queries, keys, values = inputs
        rows, total = queries.shape[2], keys.shape[2]
        most = self.limits.most_rows(queries.shape[1] // keys.shape[1])
        if not 0 < most < rows:
            return attend(*inputs, mask=mask, **named)
        self.count += 1
        size = -(-rows // -(-rows // most))  # parts of equal size, as far as possible
        parts = []
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            own_mask, seen = mask, total
            if isinstance(mask, str):
                seen = total - (rows - stop)
            elif mask is not None and mask.shape[-2] == rows:
                own_mask = mask[..., start:stop, :]
            part = queries[..., start:stop, :], keys[..., :seen, :], values[..., :seen, :]
            parts.append(attend(*part, mask=own_mask, **named))
        return mx.concatenate(parts, axis=2)


class _Forward(local):
    """What `attending` has set for the forward pass that this thread builds."""

    split: RowSplit | None = None
    layers: Sequence[Any] = ()


_forward = _Forward()


@contextmanager
def attending(
    split: RowSplit | None = None, layers: Sequence[Any] = ()
) -> Generator[None, None, None]:
    """Sets how the forward pass that this thread builds in this context computes its attentions: in
    parts, if there is a `split`. `layers` are the caches of a batch, which also compute attentions
    that have no cache because they share the keys of another layer."""
    before = _forward.split, _forward.layers
    _forward.split, _forward.layers = split, layers
    try:
        yield
    finally:
        _forward.split, _forward.layers = before


def has_latent_attention(network: nn.Module) -> bool:
    """Whether a network has latent attention in mlx-lm's form, which for one token of a sequence
    attends to the latent keys, and for more expands the whole context into keys and values."""
    names = {name for part in network.modules() for name in part}
    return "embed_q" in names and "indexer" not in names  # an indexer has a cache of its own form


def intercept_attention(network: nn.Module) -> None:
    """Lets `attending` and caches decide how a network from mlx-lm computes its attentions.

    In the whole process, this replaces the function in mlx-lm's modules by one with the same
    results.
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
            sharing = (layer for layer in _forward.layers if layer.appended[0] is keys)
            cache = next(sharing, None)
        own: Attend | None = getattr(cache, "attend", None)
        if own is not None:
            return own(intercepted, (queries, keys, values), *args, **named)
        split = _forward.split
        if split is None or not isinstance(
            keys, mx.array
        ):  # there is no such kernel for packed keys
            return attend(queries, keys, values, cache, *args, **named)
        named |= zip(_ARGUMENTS, args, strict=False)
        return split.attend(attend, (queries, keys, values), cache=cache, **named)

    return intercepted
