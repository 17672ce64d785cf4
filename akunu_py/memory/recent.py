"""RecentTexts: the prompts and answers of earlier requests, in memory, for `MemoryTier` to recall.

A text is kept with the index that its own drafter made of it, so keeping it takes no time. The
texts that were kept first go first. Nothing is written anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.occurrences import Occurrences, key_of_four
from akunu_py.memory.segment import DEPTH
from akunu_py.memory.tiers import PLACES, Place
from akunu_py.tokens import FIRST_BOUNDARY

MAX_TOKENS: Final = 1 << 17
"""Of all texts together; a token takes about 130 bytes."""

MAX_TEXTS: Final = 32
"""Each is looked up in every round that is drafted for."""

_LEAST_TOKENS: Final = 32
"""Of a text that is worth keeping."""
_SAMPLES: Final = 16
_END: Final = FIRST_BOUNDARY + (1 << 30)
"""Closes a text; no boundary of references is that large."""


class RecentTexts:
    """The texts of the requests that have ended; those of one user, who may see them all."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.version = 0
        self._max_tokens = max_tokens
        self._texts: list[Occurrences] = []  # the latest first

    def __len__(self) -> int:
        return sum(len(text.tokens) for text in self._texts)

    def keep(self, text: Occurrences) -> None:
        """Keeps a text in place of those that are part of it; drops the oldest if they are too
        many. Nobody changes the text until `take_back` was called."""
        size = len(text.tokens)
        if not _LEAST_TOKENS <= size < self._max_tokens or any(text is one for one in self._texts):
            return
        self.version += 1
        if text.tokens[-1] != _END:
            text.append(_END)
        others = [kept for kept in self._texts if not _holds(text, kept.tokens)]
        self._texts, room = [text], self._max_tokens - len(text.tokens)
        for kept in others[: MAX_TEXTS - 1]:
            room -= len(kept.tokens)
            if room >= 0:
                self._texts.append(kept)

    def take_back(self, text: Occurrences) -> None:
        """Drops a text, which may not have been kept."""
        self.version += 1
        self._texts = [kept for kept in self._texts if kept is not text]

    def nearest(self, context: Sequence[int]) -> list[Place]:
        """The latest places after four or more tokens that a context ends with; the longest match
        first, and of these the latest text."""
        if not self._texts or len(context) < 4:
            return []
        key, recent = key_of_four(*context[-4:]), context[: -DEPTH - 1 : -1]
        found: list[Place] = []
        for text in self._texts:
            latest = text.latest_four.get(key)
            for at in text.after_four(latest) if latest else ():
                length = _agreement(text.tokens, at, recent)
                if length >= 4:
                    found.append(Place(text.tokens, at, length))
        found.sort(key=lambda place: -place.length)
        return found[:PLACES]


def _agreement(tokens: Sequence[int], at: int, recent: Sequence[int]) -> int:
    """How many tokens before a place agree with recent ones, the last token first."""
    length = 0
    for token in recent[:at]:
        if tokens[at - 1 - length] != token:
            break
        length += 1
    return length


def _holds(text: Occurrences, part: Sequence[int]) -> bool:
    """Whether a text seems to hold another one, by some places of it."""
    stride = max(1, (len(part) - 4) // _SAMPLES)
    return all(
        key_of_four(*part[at : at + 4]) in text.latest_four
        for at in range(0, len(part) - 4, stride)
    )
