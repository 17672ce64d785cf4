"""The gated feed-forward block for the CPU: one multiplication for gate and input."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.cpu.exponential import FEW, exponential_of
from akunu_py.cpu.joined_linear import JoinedLinear, can_join

FEED_FORWARD_LAYERS: Final = (llama.MLP, qwen2.MLP)
"""The layers that `FusedFeedForward` can stand for."""


class FusedFeedForward(nn.Module):  # type: ignore[misc]
    """A feed-forward block of Llama or Qwen2 in fewer operations.

    Args:
        original: what it does as well; see `can_replace`. Two of its layers borrow their weights
            from here.
    """

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.gate_and_up = JoinedLinear(inputs_of(original))
        self.gate_and_up.lend(inputs_of(original))
        self.down = JoinedLinear([original.down_proj])

    @staticmethod
    def can_replace(layer: nn.Module) -> bool:
        """Whether it is one of these layers, with dense weights in float32."""
        return (
            type(layer) in FEED_FORWARD_LAYERS
            and can_join(inputs_of(layer))
            and can_join([layer.down_proj])
        )

    def __call__(self, x: mx.array) -> mx.array:
        """Maps rows `[count, hidden_size]`, float32."""
        gate, up = mx.split(self.gate_and_up(x), 2, axis=-1)
        return self.down(swiglu(gate, up))


def inputs_of(layer: nn.Module) -> list[nn.Module]:
    """What reads the block's input."""
    return [layer.gate_proj, layer.up_proj]


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """The gate, through SiLU, times the input; float32."""
    if gate.size < FEW:
        gated: mx.array = _compiled_swiglu()(gate, up)
    else:
        gated = _compiled_gate()(gate, up, _exponential_of_negative()(gate))
    return gated


@cache
def _exponential_of_negative() -> Callable[..., mx.array]:
    return exponential_of(mx.negative)


@cache
def _compiled_gate() -> Any:
    return mx.compile(lambda gate, up, power: gate / (1.0 + power) * up, shapeless=True)


@cache
def _compiled_swiglu() -> Any:
    return mx.compile(lambda gate, up: gate / (1.0 + mx.exp(-gate)) * up, shapeless=True)
