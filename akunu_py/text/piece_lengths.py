"""PieceLengths: how few tokens a text can have, told without encoding it.

Encoding megabytes takes seconds and cannot be interrupted; counting their bytes takes milliseconds.
"""

from collections.abc import Iterable
from math import floor
from typing import Final

import numpy as np

_BYTES: Final = 256
_ROUNDING: Final = 1e-6


class PieceLengths:
    """How long the entries of a vocabulary are.

    It takes for granted that every byte of a text belongs to a token that spells it, as it does in
    byte-level vocabularies and in those that fall back to bytes.

    Args:
        pieces: what each entry stands for.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        longest = [0] * _BYTES
        for piece in pieces:
            for byte in set(piece):
                longest[byte] = max(longest[byte], len(piece))
        self._shares = np.array([1 / length if length else 0.0 for length in longest])

    def least_tokens(self, text: str) -> int:
        """No fewer tokens than these spell a text.

        A byte counts as the share that it has at least in the token it belongs to: one in the
        length of the longest entry that has such a byte. No token's bytes add up to more than 1.
        """
        octets = np.frombuffer(text.encode(errors="replace"), np.uint8)
        counts = np.bincount(octets, minlength=_BYTES)
        return floor(float(counts @ self._shares) + _ROUNDING)
