"""Rows that teach copying: a stretch of tokens, then the same stretch again.

Attention heads that continue a repeated pattern form many times sooner on such rows than on
code. Only what can be predicted is learned: the repetitions, from their second token on.
"""

from __future__ import annotations

import numpy as np

from models.training.copies import Alignment


def random_stretch(rng: np.random.Generator, vocabulary: np.ndarray) -> np.ndarray:
    """4 to 64 tokens drawn evenly from `vocabulary`."""
    return rng.choice(vocabulary, size=int(rng.integers(4, 65))).astype(np.uint16)


def code_stretch(rng: np.random.Generator, tokens: np.ndarray, limit: int) -> np.ndarray:
    """8 to `limit` consecutive tokens of a corpus."""
    length = int(rng.integers(8, limit + 1))
    start = int(rng.integers(0, len(tokens) - length))
    return tokens[start : start + length]


def repeat(rng: np.random.Generator, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stretch two to four times, and which tokens are learned."""
    times = int(rng.integers(2, 5))
    tokens = np.tile(stretch, times)
    learned = np.ones(len(tokens), dtype=np.bool_)
    learned[: len(stretch)] = False
    learned[:: len(stretch)] = False
    return tokens, learned


def align(tokens: np.ndarray, learned: np.ndarray) -> Alignment:
    """Where each learned token of a repetition, which may be cut short, is copied from."""
    alignment = Alignment.nowhere(len(tokens))
    positions = np.flatnonzero(learned)
    if len(positions):
        alignment.place[positions] = alignment.source[positions] = positions - (positions[0] - 1)
    return alignment
