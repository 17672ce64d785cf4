"""N-gram storages: the most likely next token of a context, updated as counts grow.

Romsto's storage, which falls back from long contexts to short ones, and the drafter over it.
Corrected here: contexts of one token are used, a prompt shorter than a context is no error, and an
unknown context differs from a random guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.sampling.random import uniform

DEFAULT_ORDER: Final = 3
NUM_DRAFT_TOKENS: Final = 5
FILLER_TOP_K: Final = 3


class Storage(Protocol):
    """Counts what followed contexts of one or several lengths."""

    order: int

    def count(self, context: Sequence[int], token: int) -> None:
        """Counts that `token` follows the last tokens of `context`."""

    def next_token(self, context: Sequence[int]) -> tuple[int, int] | None:
        """The most likely token after `context`, and the length of the context that was found."""


class _Level:
    """The counts of contexts of one length, and the favourite next token of each.

    Only a strictly greater count replaces a favourite.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self._counts: dict[tuple[int, ...], dict[int, int]] = {}
        self._favourite: dict[tuple[int, ...], int] = {}

    def count(self, context: Sequence[int], token: int) -> None:
        if len(context) < self.length:
            return
        key = tuple(context[-self.length :])
        counts = self._counts.setdefault(key, {})
        counts[token] = counts.get(token, 0) + 1
        favourite = self._favourite.setdefault(key, token)
        if counts[token] > counts[favourite]:
            self._favourite[key] = token

    def favourite(self, context: Sequence[int]) -> int | None:
        if len(context) < self.length:
            return None
        return self._favourite.get(tuple(context[-self.length :]))


class MultiLevelStorage:
    """Looks up contexts of `order - 1` tokens down to 1. Romsto's `NGramStorage`.

    Raises:
        InvalidRequestError: if `order` is less than 2.
    """

    def __init__(self, order: int = DEFAULT_ORDER) -> None:
        self.order = _checked(order)
        self._levels = [_Level(length) for length in range(order - 1, 0, -1)]

    def count(self, context: Sequence[int], token: int) -> None:
        for level in self._levels:
            level.count(context, token)

    def next_token(self, context: Sequence[int]) -> tuple[int, int] | None:
        for level in self._levels:
            token = level.favourite(context)
            if token is not None:
                return token, level.length
        return None


class StorageDrafter:
    """Chains a storage's most likely tokens, and adds the target's most likely tokens to it.

    Romsto's n-gram assisted decoding. The storage outlives the request.

    Args:
        storage: one level or several.
        num_draft_tokens: how many tokens to draft at most, besides the limit of a proposal. The
            published number: later tokens of such a chain are rarely accepted.
        filler_top_k: how many of the target's most likely tokens to count at each emitted position;
            0 counts none.
        stop_if_unknown: whether a draft ends at an unknown context; if not, a random token is
            drafted there.
        vocabulary: how many ids to draw a random token from.
        seed: the seed of the random tokens; each depends only on it and on its position.

    Raises:
        InvalidRequestError: if random tokens are wanted without a vocabulary.
    """

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        num_draft_tokens: int = NUM_DRAFT_TOKENS,
        filler_top_k: int = FILLER_TOP_K,
        stop_if_unknown: bool = True,
        vocabulary: int = 0,
        seed: int = 0,
    ) -> None:
        if not stop_if_unknown and vocabulary < 1:
            raise InvalidRequestError(
                "Drafting at random where a context is unknown needs the size of the vocabulary; "
                "give it, or stop at unknown contexts."
            )
        self._storage = storage if storage is not None else MultiLevelStorage()
        self._num_draft_tokens = num_draft_tokens
        self._filler_top_k = filler_top_k
        self._stop_if_unknown = stop_if_unknown
        self._vocabulary = vocabulary
        self._seed = seed
        self._tokens: list[int] = []

    @property
    def alternatives_wanted(self) -> int:
        return self._filler_top_k

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        for document in (*references, prompt):
            self._tokens = []
            self.extend(document)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._storage.count(self._context(len(self._tokens)), token)
            self._tokens.append(token)

    def learn_alternatives(self, position: int, rows: Sequence[Sequence[int]]) -> None:
        for index, row in enumerate(rows, start=position):
            context = self._context(index)
            emitted = self._tokens[index] if index < len(self._tokens) else None
            for token in row[: self._filler_top_k]:
                if token != emitted:
                    self._storage.count(context, token)

    def propose(self, limit: int) -> Draft:
        limit = min(limit, self._num_draft_tokens)
        context = self._context(len(self._tokens))
        drafted: list[int] = []
        match_length = 0
        while len(drafted) < limit:
            known = self._storage.next_token(context)
            if known is None and self._stop_if_unknown:
                break
            token, length = known or (self._random_token(len(drafted)), 0)
            match_length = match_length or length
            drafted.append(token)
            context = [*context, token][1 - self._storage.order :]
        return Draft(tuple(drafted), "storage", match_length) if drafted else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass

    def _context(self, position: int) -> list[int]:
        return self._tokens[max(0, position - self._storage.order + 1) : position]

    def _random_token(self, offset: int) -> int:
        return int(uniform(self._seed, len(self._tokens) + offset) * self._vocabulary)


def _checked(order: int) -> int:
    if order < 2:
        raise InvalidRequestError(f"The order of n-grams must be 2 or more, not {order}.")
    return order
