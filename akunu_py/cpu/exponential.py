"""The exponential function in float32, in fewer steps than MLX's own on a CPU.

MLX computes one element after the other. Here e^x is 2^n * 2^f with a whole n and f within half of
zero: a polynomial gives the one and the exponent bits of a float give the other, both from simple
arithmetic that the compiler turns into vector instructions. It is as exact as MLX's.
"""

from collections.abc import Callable
from functools import cache
from math import e, factorial, log, log2
from typing import Any, Final

import mlx.core as mx

FEW: Final = 3000
"""Fewer elements than this are done sooner in one slow operation than in several quick ones."""

_LOG2_E: Final = log2(e)
_DEGREE: Final = 6
_TAYLOR: Final = tuple(log(2.0) ** power / factorial(power) for power in range(_DEGREE + 1))
_LEAST, _MOST = -126.0, 127.0
"""The exponents of normal numbers; results beyond stay at the border."""
_ROUNDER: Final = 1.5 * 2.0**23
"""A float of this size has no room for fractions: adding it rounds, and leaves the whole number in
the lowest bits."""
_MANTISSA_BITS: Final = 23
_BIAS: Final = 127


def exponential_of(argument: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The exponential of what a function makes of its arrays, compiled together with it.

    Args:
        argument: takes float32 arrays and returns one of the first one's shape.
    """
    compiled_plain = mx.compile(lambda *arrays: mx.exp(argument(*arrays)), shapeless=True)
    compiled_parts = mx.compile(lambda *arrays: parts(argument(*arrays)), shapeless=True)

    def exponential(*arrays: mx.array) -> mx.array:
        result: mx.array
        if arrays[0].size < FEW:
            result = compiled_plain(*arrays)
        else:
            whole, power = compiled_parts(*arrays)
            result = power * _compiled_exponent()(whole.view(mx.int32)).view(mx.float32)
        return result

    return exponential


def parts(x: mx.array) -> tuple[mx.array, mx.array]:
    """A float with n in its lowest bits, and 2^f: what e to the power of `x` is put together of."""
    exponent = mx.minimum(mx.maximum(x * _LOG2_E, _LEAST), _MOST)
    whole = exponent + _ROUNDER
    fraction = exponent - (whole - _ROUNDER)
    power = mx.array(_TAYLOR[-1])
    for coefficient in reversed(_TAYLOR[:-1]):
        power = power * fraction + coefficient
    return whole, power


@cache
def _compiled_exponent() -> Any:
    """2^n as the bits of a float, from the bits of a float with n in the lowest."""
    return mx.compile(
        lambda bits: mx.left_shift(bits, _MANTISSA_BITS) + (_BIAS << _MANTISSA_BITS),
        shapeless=True,
    )
