"""A network in bfloat16 as GPUs compute it: each number of rows adds up in an order of its own.

A GPU's kernels add products in float32, in an order that depends on the size of the forward, and
round the sums to 16 bits. MLX's CPU backend computes every row of a 16-bit matrix alike, so without
this no draft would ever change a text here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_MOST_PARTS: Final = 8
_attend: Final = mx.fast.scaled_dot_product_attention


class _Linear(nn.Linear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        product = _product(x, self._matrix)
        return product + self.bias if "bias" in self else product


class _Embedding(nn.Embedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        return _product(x, self._matrix)


def round_as_gpus_do(network: nn.Module) -> None:
    """Turns the weights of a network into bfloat16, and lets its products depend on the rows."""
    network.set_dtype(mx.bfloat16)
    forms = {nn.Linear: _Linear, nn.Embedding: _Embedding}
    for layer in network.modules():
        if type(layer) in forms:
            layer.__class__ = forms[type(layer)]
            layer._matrix = layer.weight.astype(mx.float32).T
            mx.eval(layer.parameters(), layer._matrix)


@contextmanager
def attention_by_size() -> Iterator[None]:
    """In the meantime, attention also adds in an order that depends on rows and context."""
    mx.fast.scaled_dot_product_attention = _attention  # type: ignore[assignment]
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = _attend


def _product(x: mx.array, matrix: mx.array) -> mx.array:
    """`x @ matrix`, as the sum of as many parts as there are rows."""
    inputs = x.shape[-1]
    parts = min(x.size // inputs, _MOST_PARTS)
    ends = [inputs * part // parts for part in range(parts + 1)]
    exact = x.astype(mx.float32)
    total = exact[..., : ends[1]] @ matrix[: ends[1]]
    for begin, end in pairwise(ends[1:]):
        total = total + exact[..., begin:end] @ matrix[begin:end]
    return total.astype(x.dtype)


def _attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    *,
    scale: float,
    mask: Any = None,
    **others: Any,
) -> mx.array:
    """The rounded sum of what keys and values give in float32 with another order of the keys."""
    rows, total = queries.shape[2], keys.shape[2]
    if isinstance(mask, str):  # "causal"
        mask = mx.arange(total) <= mx.arange(total - rows, total)[:, None]
    shift = (rows + total) % total
    exact = [array.astype(mx.float32) for array in (queries, keys, values)]
    exact[1:] = [mx.roll(array, shift, 2) for array in exact[1:]]
    if mask is not None:
        mask = mx.roll(mask, shift, -1)
        mask = mask if mask.dtype == mx.bool_ else mask.astype(mx.float32)
    found = _attend(*exact, scale=scale, mask=mask, **others)
    return found.astype(queries.dtype)
