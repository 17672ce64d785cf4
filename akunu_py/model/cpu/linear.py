"""Dense linear layers for the CPU: layers of the same input are multiplied as one."""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.model.cpu.kernels import swiglu

FEED_FORWARD_LAYERS: Final = (llama.MLP, qwen2.MLP)
"""The layers that `FusedFeedForward` can replace."""


class JoinedLinear(nn.Module):  # type: ignore[misc]
    """Linear layers of the same input as one; their outputs follow each other on the last axis.

    Attributes:
        matrix: `[inputs, outputs]`, a transposed view of the joined weights: transposing them in
            every forward would be one more operation.
        bias: `[outputs]`, if the layers have one.
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.matrix = _joined([layer.weight for layer in layers]).T
        if "bias" in layers[0]:
            self.bias = _joined([layer.bias for layer in layers])
        mx.eval(self.parameters())

    def __call__(self, x: mx.array) -> mx.array:
        return mx.addmm(self.bias, x, self.matrix) if "bias" in self else x @ self.matrix

    def share_with(self, layers: Sequence[nn.Linear]) -> None:
        """Makes the layers' weights views of the joined ones, so that memory holds them once."""
        start = 0
        for layer in layers:
            end = start + layer.weight.shape[0]
            layer.weight = self.matrix[:, start:end].T
            start = end


def _joined(arrays: list[mx.array]) -> mx.array:
    return arrays[0] if len(arrays) == 1 else mx.concatenate(arrays)


def can_join(layers: Sequence[nn.Module]) -> bool:
    """Whether layers are dense in float32, and all or none of them have a bias."""
    dense = all(type(layer) is nn.Linear and layer.weight.dtype == mx.float32 for layer in layers)
    return dense and len({"bias" in layer for layer in layers}) == 1


class FusedFeedForward(nn.Module):  # type: ignore[misc]
    """A gated feed-forward block of Llama or Qwen2: one multiplication for gate and input."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.gate_and_up = JoinedLinear(_inputs_of(original))
        self.gate_and_up.share_with(_inputs_of(original))
        self.down = JoinedLinear([original.down_proj])

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether a layer is such a block, with dense float32 weights."""
        return (
            type(layer) in FEED_FORWARD_LAYERS
            and can_join(_inputs_of(layer))
            and can_join([layer.down_proj])
        )

    def __call__(self, x: mx.array) -> mx.array:
        """Maps `[..., hidden_size]`, float32."""
        gate, up = mx.split(self.gate_and_up(x), 2, axis=-1)
        return self.down(swiglu(gate, up))


def _inputs_of(layer: nn.Module) -> list[nn.Module]:
    return [layer.gate_proj, layer.up_proj]
