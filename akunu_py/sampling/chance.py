"""Chance that can be repeated: numbers that depend on a seed and a position alone, and draws.

Whatever is random about the token at a position is keyed by that position, never by how many
tokens were drawn before. Streams tell apart the several numbers that one position needs; a
drafter's is 0, and verification uses others, or the two would not be independent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
    """A number in [0, 1) that depends on the three arguments alone."""
    mixed = mix64(seed * _SEED_STEP + stream * _STREAM_STEP + (position + 1) * GOLDEN_GAMMA)
    return (mixed >> 11) / (1 << 53)


def draw(row: npt.NDArray[np.floating[Any]], chance: float) -> int:
    """The token at `chance`, 0 to 1, of a row's cumulative sum; the row need not be normalised.

    A token without any probability is never drawn.
    """
    import numpy as np  # noqa: PLC0415  (drafters that draw from no row load without it)

    cumulative = np.cumsum(row, dtype=np.float64)
    token = int(np.searchsorted(cumulative, chance * cumulative[-1], side="right"))
    return min(token, int(np.searchsorted(cumulative, cumulative[-1], side="left")))
