"""Root-mean-square norms for the CPU, in a few compiled operations in place of ten."""

from functools import cache
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_MOST_FUSED_ROWS: Final = 16
"""Beyond this many rows MLX's own operations, which are vectorised, win over a compiled one."""


class FusedRMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """`nn.RMSNorm`, in fewer operations where only a few rows are normalised.

    Args:
        original: what it computes as well, to the bit.
    """

    def __init__(self, original: nn.RMSNorm) -> None:
        super().__init__(original.weight.size, original.eps)
        self.weight = original.weight

    def __call__(self, x: mx.array) -> mx.array:
        if not _are_few(x):
            normalised: mx.array = super().__call__(x)
        else:
            normalised = _compiled_rms_norm(self.eps)(x, self.weight)
        return normalised

    def after(self, x: mx.array, change: mx.array) -> tuple[mx.array, mx.array]:
        """Adds what a layer computed, and normalises the sum.

        Args:
            x: `[count, hidden_size]`, float32.
            change: as `x`.

        Returns:
            The sum, and the sum normalised.
        """
        if not _are_few(x):
            added = x + change
            normalised: mx.array = super().__call__(added)
        else:
            added, squares = _compiled_sum_and_squares()(x, change)
            total = mx.sum(squares, axis=-1, keepdims=True)
            compiled = _compiled_division(self.eps, 1.0 / x.shape[-1])
            normalised = compiled(added, total, self.weight)
        return added, normalised


def _are_few(x: mx.array) -> bool:
    few: bool = x.size <= _MOST_FUSED_ROWS * x.shape[-1]
    return few


@cache
def _compiled_rms_norm(eps: float) -> Any:
    return mx.compile(lambda x, weight: mx.fast.rms_norm(x, weight, eps), shapeless=True)


@cache
def _compiled_sum_and_squares() -> Any:
    def sum_and_squares(x: mx.array, change: mx.array) -> tuple[mx.array, mx.array]:
        added = x + change
        return added, mx.square(added)

    return mx.compile(sum_and_squares, shapeless=True)


@cache
def _compiled_division(eps: float, share: float) -> Any:
    def divide(x: mx.array, total: mx.array, weight: mx.array) -> mx.array:
        return x * mx.rsqrt(total * share + eps) * weight

    return mx.compile(divide, shapeless=True)
