"""JoinedLinear: dense linear layers of the same input, multiplied as one."""

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn


class JoinedLinear(nn.Module):  # type: ignore[misc]
    """What the layers compute, one after the other along the last axis.

    Args:
        layers: at least one; see `can_join`.

    Attributes:
        matrix: `[inputs, outputs]`, a view of the weights as a linear layer keeps them: turning
            them in every forward is an operation more. A single layer's are not copied.
        bias: `[outputs]`, where the layers have one.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.matrix = _joined([layer.weight for layer in layers]).T
        if "bias" in layers[0]:
            self.bias = _joined([layer.bias for layer in layers])
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.matrix) if "bias" in self else x @ self.matrix

    def lend(self, layers: Sequence[nn.Linear]) -> None:
        """Gives each of the layers its part of the weights, so that they need none of their own."""
        start = 0
        for layer in layers:
            end = start + layer.weight.shape[0]
            layer.weight = self.matrix[:, start:end].T
            start = end


def _joined(arrays: list[mx.array]) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Whether they are dense in float32, all with a bias or none."""
    dense = all(type(layer) is nn.Linear and layer.weight.dtype == mx.float32 for layer in layers)
    return dense and len({"bias" in layer for layer in layers}) == 1
