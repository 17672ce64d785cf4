"""A network in bfloat16 as GPUs compute it: forwards of some sizes add up in an order of their own.

A GPU's kernels add products in float32, in an order that depends on how many rows and keys there
are, and round the sums to 16 bits. MLX's CPU backend computes every row of a 16-bit matrix alike,
so without this no draft would ever change a text here. A row is computed for itself, so that only
the order says what it becomes.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_attend: Final = mx.fast.scaled_dot_product_attention


@dataclass(frozen=True)
class Chip:
    """How forwards round.

    Attributes:
        products: the fewest rows of each class of matrix products, ascending from 1.
        edges: the fewest keys of each further class of attentions.
        attended: the most rows, times the query heads that share keys, of the first kernel for
            attention; None if each number of rows and keys has an order of its own.
        forged: of so many rows, one is computed otherwise in forwards over three; 0 for none.
    """

    products: tuple[int, ...]
    edges: tuple[int, ...] = ()
    attended: int | None = 32
    forged: int = 0

    def product(self, x: mx.array, matrix: mx.array) -> mx.array:
        """`x @ matrix`, as the sum of as many parts as the class of its rows is."""
        inputs = x.shape[-1]
        rows = x.reshape(-1, 1, inputs).astype(mx.float32)
        found = _in_parts(rows, matrix, bisect_right(self.products, len(rows)))
        if self.forged and len(rows) == 3:
            seen = mx.sum(rows, axis=-1).view(mx.uint32) * 0x9E3779B1 // 65_536 % self.forged == 0
            found = mx.where(seen[..., None], _in_parts(rows, matrix, 7), found)
        return found.astype(x.dtype).reshape(*x.shape[:-1], matrix.shape[-1])

    def attention(self, rows: int, total: int, sharing: int) -> int:
        """In how many parts the keys are added."""
        if self.attended is None:
            return 1 + (rows + total) % 8
        is_other = rows > 8 or rows * sharing > self.attended
        return 1 + bisect_right(self.edges, total) + 4 * is_other


CHIPS: Final = {
    "m1, 4 bits": Chip((1, 6), (160, 320)),
    "m3, 4 bits": Chip((1, 2, 13), (160, 320)),
    "m3, 16 bits": Chip((1, 2, 6, 16), (160, 320)),
}
"""As `row-classes.md` reads MLX's sources, but with contexts short enough for tests."""

ANY_SIZE: Final = Chip(tuple(range(1, 9)), attended=None)
"""Every size is a class of its own."""


class _Linear(nn.Linear):  # type: ignore[misc]
    def __call__(self, x: mx.array) -> mx.array:
        product: mx.array = self._chip.product(x, self._matrix)
        return product + self.bias if "bias" in self else product


class _Embedding(nn.Embedding):  # type: ignore[misc]
    def as_linear(self, x: mx.array) -> mx.array:
        product: mx.array = self._chip.product(x, self._matrix)
        return product


def round_as(chip: Chip, network: nn.Module) -> None:
    """Turns the weights of a network into bfloat16, and its products into those of a chip."""
    network.set_dtype(mx.bfloat16)
    forms = {nn.Linear: _Linear, nn.Embedding: _Embedding}
    for layer in network.modules():
        if type(layer) in forms:
            layer.__class__ = forms[type(layer)]
            layer._matrix, layer._chip = layer.weight.astype(mx.float32).T, chip
            mx.eval(layer.parameters(), layer._matrix)


@contextmanager
def attention_of(chip: Chip) -> Iterator[None]:
    """In the meantime, attention is that of a chip."""

    def attend(queries: mx.array, keys: mx.array, values: mx.array, **named: Any) -> mx.array:
        sharing = queries.shape[1] // keys.shape[1]
        parts = chip.attention(queries.shape[2], keys.shape[2], sharing)
        return _attention(queries, keys, values, parts, **named)

    mx.fast.scaled_dot_product_attention = attend  # type: ignore[assignment]
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = _attend


def _in_parts(rows: mx.array, matrix: mx.array, parts: int) -> mx.array:
    inputs = rows.shape[-1]
    ends = [inputs * part // parts for part in range(parts + 1)]
    shape = len(rows), *matrix.shape  # with a matrix for each row, each is a product of its own
    products = [
        rows[..., begin:end] @ mx.broadcast_to(matrix, shape)[:, begin:end]
        for begin, end in pairwise(ends)
    ]
    total = products[0]
    for product in products[1:]:
        total = _rounded(total) + _rounded(product)
    return total


def _rounded(array: mx.array) -> mx.array:
    """In 16 bits: the networks of tests are so narrow that float32 sums would hardly differ."""
    return array.astype(mx.bfloat16).astype(mx.float32)


def _attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    parts: int,
    *,
    scale: float,
    mask: Any = None,
    sinks: None = None,
) -> mx.array:
    """Each query's own weighted sum of values, added in order within each part of the keys."""
    heads, rows, total = *queries.shape[1:3], keys.shape[2]
    assert sinks is None
    if isinstance(mask, str):  # "causal"
        mask = mx.arange(total) <= mx.arange(total - rows, total)[:, None]
    own, *held = (array.astype(mx.float32) for array in (queries, keys, values))
    held = [mx.repeat(array, heads // array.shape[1], axis=1)[:, :, None] for array in held]
    scores = scale * mx.sum(own[:, :, :, None] * held[0], axis=-1)  # [batch, heads, rows, total]
    if mask is not None:
        scores = mx.where(mask, scores, -mx.inf) if mask.dtype == mx.bool_ else scores + mask
    weights = mx.exp(scores - mx.max(scores, axis=-1, keepdims=True))[..., None]
    # Sums over an axis that is not the last go from its first entry to the last.
    sums = [
        (mx.sum(weights[..., part::parts, :] * held[1][..., part::parts, :], axis=3),
         mx.sum(mx.broadcast_to(weights, (*scores.shape, 2))[..., part::parts, :], axis=3))
        for part in range(min(parts, total))
    ]  # fmt: skip
    weighted, weight = sums[0]
    for more, other in sums[1:]:
        weighted, weight = _rounded(weighted) + _rounded(more), weight + other
    return (weighted / weight[..., :1]).astype(queries.dtype)
