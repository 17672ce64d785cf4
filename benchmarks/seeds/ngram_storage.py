"""StorageDrafter: Romsto's n-gram assisted decoding, with a storage that outlives the request.

The storage counts what followed contexts of several lengths. A draft chains the most likely tokens,
the longest known context first. Corrected here: contexts of one token are used, a prompt shorter
than a context is no error, and a draft ends at an unknown context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter

ORDER: Final = 3
NUM_DRAFT_TOKENS: Final = 5
"""The published number: later tokens of such a chain are rarely accepted."""


class NGramStorage:
    """Counts what followed contexts, and knows the favourite next token of each.

    Only a strictly greater count replaces a favourite.

    Args:
        order: contexts have up to `order - 1` tokens, 1 or more.
        one_level: counts only contexts of exactly that length: Romsto's `OneLevelNGramStorage`.
    """

    def __init__(self, order: int = ORDER, *, one_level: bool = False) -> None:
        self.longest = order - 1
        self._lengths = range(self.longest, self.longest - 1 if one_level else 0, -1)
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._favourite: dict[tuple[int, ...], int] = {}

    def count(self, context: Sequence[int], token: int) -> None:
        """Counts that `token` follows the last tokens of `context`."""
        for length in self._lengths:
            if len(context) < length:
                continue
            key = tuple(context[-length:])
            counts = self._counts.setdefault(key, {})
            counts[token] = counts.get(token, 0) + 1
            favourite = self._favourite.setdefault(key, token)
            if counts[token] > counts[favourite]:
                self._favourite[key] = token

    def next_token(self, context: Sequence[int]) -> tuple[int, int] | None:
        """The most likely token after `context`, and the length of the context that was found."""
        for length in self._lengths:
            if len(context) >= length and tuple(context[-length:]) in self._favourite:
                return self._favourite[tuple(context[-length:])], length
        return None


class StorageDrafter(Drafter):
    """Chains a storage's most likely tokens."""

    def __init__(self, storage: NGramStorage | None = None) -> None:
        self._storage = storage or NGramStorage()
        self._tokens: list[int] = []

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        for document in (*references, prompt):
            self._tokens = []
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._storage.count(self._context(len(self._tokens)), token)
            self._tokens.append(token)

    def propose(self, limit: int) -> Draft:
        context = self._context(len(self._tokens))
        drafted: list[int] = []
        match_length = 0
        while len(drafted) < min(limit, NUM_DRAFT_TOKENS):
            known = self._storage.next_token(context)
            if known is None:
                break
            token, length = known
            match_length = match_length or length
            drafted.append(token)
            context = [*context, token][-self._storage.longest :]
        return Draft(tuple(drafted), "storage", match_length) if drafted else NO_DRAFT

    def _context(self, position: int) -> list[int]:
        return self._tokens[max(0, position - self._storage.longest) : position]
