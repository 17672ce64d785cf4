"""NGramDrafter: akunu's `NGramPredictor`, continuations of the last three, two or one tokens.

It counts every continuation of every short context and chains the most frequent ones into a draft.
akunu keys its tables by the 64-bit FNV-1a hash of the context's ids; a dict keyed by the context
itself predicts the same.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter

LONGEST_CONTEXT: Final = 3


class _Continuations:
    """What followed one context, and the favourite: the most frequent, then the most recent."""

    __slots__ = ("counts", "favourite")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.favourite = -1

    def count(self, token: int) -> None:
        seen = self.counts.get(token, 0) + 1
        self.counts[token] = seen
        if seen >= self.counts.get(self.favourite, 0):
            self.favourite = token


class NGramDrafter(Drafter):
    """Predicts by n-grams of order 2 to 4, the longest known context first.

    Of equally frequent continuations, it takes the one that reached the count last, so a draft
    depends only on the tokens. Source: akunu, "Speculative Decoding with N-grams".
    """

    def __init__(self) -> None:
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._table: defaultdict[tuple[int, ...], _Continuations] = defaultdict(_Continuations)
        for document in (*references, prompt):
            self._window: tuple[int, ...] = ()  # the last tokens
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for start in range(len(self._window)):
                self._table[self._window[start:]].count(token)
            self._window = (*self._window, token)[-LONGEST_CONTEXT:]

    def propose(self, limit: int) -> Draft:
        window = self._window
        tokens: list[int] = []
        match_length = 0
        while len(tokens) < limit:
            context = window
            while context and context not in self._table:
                context = context[1:]
            if not context:
                break
            match_length = match_length or len(context)
            tokens.append(self._table[context].favourite)
            window = (*window, tokens[-1])[-LONGEST_CONTEXT:]
        return Draft(tuple(tokens), "ngram", match_length) if tokens else NO_DRAFT
