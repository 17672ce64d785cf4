"""Romsto's `OneLevelNGramStorage`: the storage of the `storage` drafter without shorter contexts.

Where the longest context is unknown, it has no answer.
"""

from __future__ import annotations

from akunu_py.drafting.ngram_storage import DEFAULT_ORDER, MultiLevelStorage


class OneLevelStorage(MultiLevelStorage):
    """Knows contexts of exactly `order - 1` tokens.

    Raises:
        InvalidRequestError: if `order` is less than 2.
    """

    def __init__(self, order: int = DEFAULT_ORDER) -> None:
        super().__init__(order)
        del self._levels[1:]  # the longest comes first
