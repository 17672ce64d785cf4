"""NGramDrafter: akunu's `NGramPredictor`, continuations of the last three, two or one tokens.

Counts every continuation of every short context and chains the most frequent ones into a draft.
akunu keys its tables by the 64-bit FNV-1a hash of the context's ids; a dict keyed by the context
itself predicts the same. The tables outlive the window of history, which only feeds the contexts.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft

MAX_ORDER: Final = 4
MAX_HISTORY: Final = 512


class _Continuations:
    """What followed one context, and the favourite: most frequent, then most recent."""

    __slots__ = ("counts", "favourite")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.favourite = -1

    def count(self, token: int) -> None:
        seen = self.counts.get(token, 0) + 1
        self.counts[token] = seen
        if seen >= self.counts.get(self.favourite, 0):
            self.favourite = token


class NGramDrafter:
    """Predicts by n-grams of order 2 to 4, the longest known context first.

    Of equally frequent continuations it takes the one that reached the count last, so a draft
    depends on the tokens alone. Source: akunu, "Speculative Decoding with N-grams".

    Args:
        max_order: the longest n-gram; contexts have up to `max_order - 1` tokens.
        max_history: how many tokens of history the window keeps for contexts.
    """

    def __init__(self, max_order: int = MAX_ORDER, max_history: int = MAX_HISTORY) -> None:
        self._longest_context = max_order - 1
        self._history: deque[int] = deque(maxlen=max_history)
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._table: defaultdict[tuple[int, ...], _Continuations] = defaultdict(_Continuations)
        for document in (*references, prompt):
            self._history.clear()
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        window = self._last(self._longest_context)
        for token in tokens:
            for length in range(1, len(window) + 1):
                self._table[window[-length:]].count(token)
            window = (*window, token)[-self._longest_context :]
        self._history.extend(tokens)

    def propose(self, limit: int) -> Draft:
        window = self._last(self._longest_context)
        tokens: list[int] = []
        match_length = 0
        while len(tokens) < limit and (context := self._longest_known(window)):
            match_length = match_length or len(context)
            tokens.append(self._table[context].favourite)
            window = (*window, tokens[-1])[-self._longest_context :]
        return Draft(tuple(tokens), "ngram", match_length) if tokens else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def _longest_known(self, window: tuple[int, ...]) -> tuple[int, ...]:
        """The longest end of the window that is in the table; empty if none is."""
        while window and window not in self._table:
            window = window[1:]
        return window

    def _last(self, count: int) -> tuple[int, ...]:
        size = len(self._history)
        return tuple(self._history[index] for index in range(max(0, size - count), size))
