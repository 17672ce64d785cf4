"""Root-mean-square norms for the CPU: one compiled operation in place of ten."""

from functools import cache
from typing import Any, Final

import mlx.core as mx
from mlx import nn

_MOST_FUSED_ROWS: Final = 16
"""Beyond this many rows MLX's own operations, which are vectorised, win over a compiled one."""


class FusedRMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """`nn.RMSNorm`, in one operation where only a few rows are normalised."""

    def __init__(self, original: nn.RMSNorm) -> None:
        super().__init__(original.weight.size, original.eps)
        self.weight = original.weight

    def __call__(self, x: mx.array) -> mx.array:
        few = x.size <= _MOST_FUSED_ROWS * x.shape[-1]
        normalised: mx.array = (
            _compiled_rms_norm(self.eps)(x, self.weight) if few else super().__call__(x)
        )
        return normalised


@cache
def _compiled_rms_norm(eps: float) -> Any:
    return mx.compile(lambda x, weight: mx.fast.rms_norm(x, weight, eps), shapeless=True)
