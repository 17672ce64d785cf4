"""References: documents that a request may be drafted from, kept apart where they share a list.

A drafter that copies keeps everything it may copy from in one list. There each reference is closed
by a boundary: an id that is no token and occurs once, so that no match runs across it.
"""

from collections.abc import Sequence
from typing import Final

FIRST_BOUNDARY: Final = 1 << 31
"""Ids from here on close documents; no vocabulary is that large."""


def joined(references: Sequence[Sequence[int]], prompt: Sequence[int]) -> list[int]:
    """The references, each closed by a boundary, and then the prompt."""
    tokens: list[int] = []
    for number, reference in enumerate(references):
        tokens.extend(reference)
        tokens.append(FIRST_BOUNDARY + number)
    tokens.extend(prompt)
    return tokens


def until_boundary(tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens before the first boundary among them."""
    for position, token in enumerate(tokens):
        if token >= FIRST_BOUNDARY:
            return tuple(tokens[:position])
    return tuple(tokens)
