"""Small helpers for lists of token ids."""

from collections.abc import Sequence
from typing import Final

_STRIDE: Final = 256


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences share from the start."""
    most = min(len(left), len(right))
    shared = 0
    while shared < most and left[shared : shared + _STRIDE] == right[shared : shared + _STRIDE]:
        shared += _STRIDE  # comparing slices is much faster than comparing tokens
    while shared < most and left[shared] == right[shared]:
        shared += 1
    return min(shared, most)
