"""Norms, linear layers and feed-forward blocks for the CPU, and their compiled operations."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import e, factorial, log, log2
from typing import Any, Final, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2

FEW: Final = 3000
"""Below this many elements, one slow operation takes less time than several fast ones."""

_LOG2_E: Final = log2(e)
_DEGREE: Final = 6
_TAYLOR: Final = tuple(log(2.0) ** power / factorial(power) for power in range(_DEGREE + 1))
_MIN_EXPONENT, _MAX_EXPONENT = -126.0, 127.0
"""The range of exponents of normal floats; others are clamped."""
_ROUNDER: Final = 1.5 * 2.0**23
"""Adding a float of this size rounds, and leaves the whole number in the lowest bits."""
_MANTISSA_BITS: Final = 23
_BIAS: Final = 127
_MAX_FUSED_ROWS: Final = 16
"""For more rows, MLX's own operations, which are vectorised, are faster than a compiled one."""

_compiled: Final[Callable[..., Any]] = partial(mx.compile, shapeless=True)
_compiled_exponent: Final = _compiled(
    lambda bits: mx.left_shift(bits, _MANTISSA_BITS) + (_BIAS << _MANTISSA_BITS)
)
"""The bits of the float 2^n, from the bits of a float with n in the lowest."""


def exponential_of(argument: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The exponential of a function of float32 arrays, compiled together with that function.

    MLX computes the exponential one element at a time. Here e^x is 2^n * 2^f with a whole n and f
    within 0.5 of zero: the exponent bits of a float give 2^n and a polynomial gives 2^f, which the
    compiler turns into vector instructions. The result is as exact as MLX's.
    """
    compiled_plain = _compiled(lambda *arrays: mx.exp(argument(*arrays)))
    compiled_parts = _compiled(lambda *arrays: _parts(argument(*arrays)))

    def exponential(*arrays: mx.array) -> mx.array:
        if arrays[0].size < FEW:
            return cast(mx.array, compiled_plain(*arrays))
        whole, power = compiled_parts(*arrays)
        return cast(mx.array, power * _compiled_exponent(whole.view(mx.int32)).view(mx.float32))

    return exponential


def _parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """The two factors of e^x: a float with n in its lowest bits, and 2^f."""
    exponent = mx.minimum(mx.maximum(x * _LOG2_E, _MIN_EXPONENT), _MAX_EXPONENT)
    whole = exponent + _ROUNDER
    fraction = exponent - (whole - _ROUNDER)
    power = mx.array(_TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        power = power * fraction + coefficient
    return whole, power


def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """SiLU of the gate, times the input; float32."""
    if gate.size < FEW:
        return cast(mx.array, _compiled_swiglu(gate, up))
    return cast(mx.array, _compiled_gate(gate, up, _exponential_of_negative(gate)))


_exponential_of_negative = exponential_of(mx.negative)
_compiled_gate = _compiled(lambda gate, up, power: gate / (1.0 + power) * up)
_compiled_swiglu = _compiled(lambda gate, up: gate / (1.0 + mx.exp(-gate)) * up)


class FusedRMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """`nn.RMSNorm` in fewer operations for a few rows; the results are the same to the bit."""

    def __init__(self, original: nn.RMSNorm) -> None:
        super().__init__(original.weight.size, original.eps)
        self.weight = original.weight

    def __call__(self, x: mx.array) -> mx.array:
        if x.size > _MAX_FUSED_ROWS * x.shape[-1]:
            return cast(mx.array, super().__call__(x))
        return cast(mx.array, _compiled_rms_norm(self.eps)(x, self.weight))


@cache
def _compiled_rms_norm(eps: float) -> Any:
    return _compiled(lambda x, weight: mx.fast.rms_norm(x, weight, eps))


class JoinedLinear(nn.Module):  # type: ignore[misc]
    """Linear layers of the same input as one; their outputs follow each other on the last axis.
    `matrix` is `[inputs, outputs]`, a transposed view of the joined weights: transposing them in
    every forward pass would be an additional operation.
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
        return (
            type(layer) in (llama.MLP, qwen2.MLP)
            and can_join(_inputs_of(layer))
            and can_join([layer.down_proj])
        )

    def __call__(self, x: mx.array) -> mx.array:
        gate, up = mx.split(self.gate_and_up(x), 2, axis=-1)
        return self.down(swiglu(gate, up))


def _inputs_of(layer: nn.Module) -> list[nn.Module]:
    return [layer.gate_proj, layer.up_proj]
