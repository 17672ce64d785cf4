"""Where an answer copies from: for each of its tokens, the earlier token that it repeats.

The alignment is what one attention head is taught to look at while the model trains; see
`guidance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

NOT_COPIED = -1
_SHORTEST = 2


def sources_of(tokens: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """For each token the index of the one it copies, or `NOT_COPIED`; all are `[length]`.

    Each learned run is compared with what lies between it and the start of the learned run
    before it, so that the answer to a second request copies from the first answer.
    """
    sources = np.full(len(tokens), NOT_COPIED)
    earlier = 0
    for begin, end in _runs(learned):
        given, answer = tokens[earlier:begin].tolist(), tokens[begin:end].tolist()
        matcher = SequenceMatcher(None, given, answer, autojunk=False)
        for block in matcher.get_matching_blocks():
            if block.size >= _SHORTEST:
                copied = np.arange(earlier + block.a, earlier + block.a + block.size)
                sources[begin + block.b : begin + block.b + block.size] = copied
        earlier = begin
    return sources


def _runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """The begin and end of every run of true values."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True)
