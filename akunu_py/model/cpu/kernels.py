"""Compiled operations for the CPU: the exponential, SwiGLU, and root-mean-square norms."""

from collections.abc import Callable
from functools import cache, partial
from math import e, factorial, log, log2
from typing import Any, Final, cast

import mlx.core as mx
from mlx import nn

FEW: Final = 3000
"""Below this many elements, one slow operation takes less time than several fast ones."""

_LOG2_E: Final = log2(e)
_DEGREE: Final = 6
_TAYLOR: Final = tuple(log(2.0) ** power / factorial(power) for power in range(_DEGREE + 1))
_MIN_EXPONENT, _MAX_EXPONENT = -126.0, 127.0
"""The exponents of normal floats; others are clamped."""
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
