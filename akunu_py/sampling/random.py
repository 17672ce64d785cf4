"""Repeatable random numbers: each depends only on a seed, the position of a token and a stream.

Streams separate the numbers that one position needs: drafters use stream 0 and verification uses
others, so that the two are independent.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

_UINT64_MASK: Final = (1 << 64) - 1
_SEED_STEP: Final = 0xD1342543DE82EF95
_STREAM_STEP: Final = 0xA24BAED4963EE407
GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood, 2014): neighbours become unrelated."""
    value &= _UINT64_MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64_MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _UINT64_MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int, stream: int = 0) -> float:
    """A number in [0, 1) that depends only on the three arguments."""
    mixed = mix64(seed * _SEED_STEP + stream * _STREAM_STEP + (position + 1) * GOLDEN_GAMMA)
    return (mixed >> 11) / (1 << 53)


def draw(row: npt.NDArray[np.floating[Any]], fraction: float) -> int:
    """The token where the cumulative sum of a row reaches a fraction, from 0 to 1, of its total.

    The row need not be normalised. A token of probability 0 is never drawn.
    """
    cumulative = np.cumsum(row, dtype=np.float64)
    token = int(np.searchsorted(cumulative, fraction * cumulative[-1], side="right"))
    return min(token, int(np.searchsorted(cumulative, cumulative[-1], side="left")))
