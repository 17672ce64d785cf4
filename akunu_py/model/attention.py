"""Replaces the attention of mlx-lm's networks, in one place: for batches.

mlx-lm's models call one function for every attention and pass the layer's cache. If the cache has a
method `attend`, as in a batch, that computes the attention instead.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any, Final

import mlx.core as mx
from mlx import nn

MOST_APART: Final = 64
"""Up to so many tokens of one sequence go through latent attention as a batch of single tokens: 4
take 36 ms instead of 112 after 2,000 others, 32 take 160 instead of 204 (deepseek_v3, 40 million
parameters, two cores of an EPYC)."""
_NAME: Final = "scaled_dot_product_attention"

Attend = Callable[..., mx.array]
"""mlx-lm's function. It takes queries `[batch, heads, rows, head_dim]`, keys and values of fewer
heads and `total` positions, and by name `cache`, `scale`, `mask` and perhaps `sinks`. The mask is
`causal` for the last rows of the total, None if all is visible, or an array whose last two axes are
the rows (or 1) and the total."""


class _Forward(local):
    """What `attending` has set for the forward pass that this thread builds."""

    layers: Sequence[Any] = ()


_forward = _Forward()


@contextmanager
def attending(layers: Sequence[Any]) -> Generator[None, None, None]:
    """Sets the caches of the batch whose forward pass this thread builds in this context: they also
    compute attentions that have no cache because they share the keys of another layer."""
    before, _forward.layers = _forward.layers, layers
    try:
        yield
    finally:
        _forward.layers = before


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
            return own(attend, (queries, keys, values), *args, **named)
        return attend(queries, keys, values, cache, *args, **named)

    return intercepted
