"""NGramDrafter: akunu's `NGramPredictor`, continuations of the last three, two or one tokens.

Counts every continuation of every short context it sees and chains the most frequent ones into a
draft. The tables outlive the window of history; only the window feeds the contexts.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft

MAX_ORDER: Final = 4
MAX_HISTORY: Final = 512

_FNV_OFFSET_BASIS: Final = 14695981039346656037
_FNV_PRIME: Final = 1099511628211
_UINT64_MASK: Final = (1 << 64) - 1


def fnv1a(tokens: Iterable[int]) -> int:
    """The 64-bit FNV-1a hash over token ids, one round a token."""
    value = _FNV_OFFSET_BASIS
    for token in tokens:
        value = ((value ^ token) * _FNV_PRIME) & _UINT64_MASK
    return value


class _Continuations:
    """What followed one context, and the favourite: most frequent, then most recent."""

    __slots__ = ("context", "counts", "favourite")

    def __init__(self, context: tuple[int, ...]) -> None:
        self.context = context
        self.counts: dict[int, int] = {}
        self.favourite = -1

    def count(self, token: int) -> None:
        seen = self.counts.get(token, 0) + 1
        self.counts[token] = seen
        if seen >= self.counts.get(self.favourite, 0):
            self.favourite = token


class _ContextTable:
    """`fnv1a(context) -> continuations`, with the context kept beside them.

    Contexts whose hashes collide share a bucket and are told apart there, so a collision costs a
    comparison and never a wrong continuation.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, list[_Continuations]] = {}

    def find(self, context: tuple[int, ...]) -> _Continuations | None:
        for entry in self._buckets.get(fnv1a(context), ()):
            if entry.context == context:
                return entry
        return None

    def count(self, context: tuple[int, ...], token: int) -> None:
        bucket = self._buckets.setdefault(fnv1a(context), [])
        for entry in bucket:
            if entry.context == context:
                break
        else:
            entry = _Continuations(context)
            bucket.append(entry)
        entry.count(token)


class NGramDrafter:
    """Predicts by n-grams of order 2 to 4, the longest known context first.

    Ties go to the continuation that reached the count last, which makes the draft a function of
    the tokens alone. Source: akunu, "Speculative Decoding with N-grams".

    Args:
        max_order: the longest n-gram; contexts have up to `max_order - 1` tokens.
        max_history: how many tokens of history the window keeps for contexts.
    """

    def __init__(self, max_order: int = MAX_ORDER, max_history: int = MAX_HISTORY) -> None:
        self._longest_context = max_order - 1
        self._history: deque[int] = deque(maxlen=max_history)
        self._tables: dict[int, _ContextTable] = {}
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._tables = {length: _ContextTable() for length in range(self._longest_context, 0, -1)}
        for document in (*references, prompt):
            self._history.clear()
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        window = self._last(self._longest_context)
        for token in tokens:
            for length, table in self._tables.items():
                if length <= len(window):
                    table.count(tuple(window[-length:]), token)
            window = [*window, token][-self._longest_context :]
        self._history.extend(tokens)

    def propose(self, limit: int) -> Draft:
        window = self._last(self._longest_context)
        tokens: list[int] = []
        match_length = 0
        while len(tokens) < limit:
            entry = self._longest_known(window)
            if entry is None:
                break
            match_length = match_length or len(entry.context)
            tokens.append(entry.favourite)
            window = [*window, entry.favourite]
        return Draft(tuple(tokens), "ngram", match_length) if tokens else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def _longest_known(self, window: list[int]) -> _Continuations | None:
        for length, table in self._tables.items():
            if length <= len(window) and (entry := table.find(tuple(window[-length:]))):
                return entry
        return None

    def _last(self, count: int) -> list[int]:
        size = len(self._history)
        return [self._history[i] for i in range(max(0, size - count), size)]
