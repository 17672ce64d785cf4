"""JoinedLinear: dense linear layers of the same input, multiplied as one."""

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn


class JoinedLinear(nn.Module):  # type: ignore[misc]
    """What the layers compute, one after the other along the last axis.

    Args:
        layers: at least one; see `can_join`.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = mx.concatenate([layer.weight for layer in layers])
        mx.eval(self.weight)
        if "bias" in layers[0]:
            self.bias = mx.concatenate([layer.bias for layer in layers])

    def __call__(self, x: mx.array) -> mx.array:
        if "bias" in self:
            return mx.addmm(self.bias, x, self.weight.T)
        return x @ self.weight.T

    def lend(self, layers: Sequence[nn.Linear]) -> None:
        """Gives each of the layers its part of the weights, so that they need none of their own."""
        start = 0
        for layer in layers:
            rows = layer.weight.shape[0]
            layer.weight = self.weight[start : start + rows]
            start += rows


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Whether they are dense, all with a bias or none."""
    dense = all(type(layer) is nn.Linear for layer in layers)
    return dense and len({"bias" in layer for layer in layers}) == 1
