"""Chance keyed by a seed and a position, so that a draft does not depend on how it was asked for.

Not for verification: its random stream must be another than the drafter's, or the two would not be
independent.
"""

from typing import Final

_UINT64_MASK: Final = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on `seed` and `position` alone (SplitMix64)."""
    mixed = (seed * 0xD1342543DE82EF95 + (position + 1) * 0x9E3779B97F4A7C15) & _UINT64_MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64_MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _UINT64_MASK
    return ((mixed ^ (mixed >> 31)) >> 11) / (1 << 53)
