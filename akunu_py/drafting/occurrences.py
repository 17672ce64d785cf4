"""Occurrences: where the last few tokens of a request stood before, and what followed.

An index over one growing list of tokens: for contexts of 4, 2 and 1 tokens it links every
occurrence to the one before it (the hash chains of LZ77). Appending costs the same at any length,
and so does a look-up, because only the latest few occurrences are visited. Knows no drafts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

VISITED: Final = 6
LONGEST_COMPARED: Final = 16

_TOKEN_BITS: Final = 32
_PAIR_PRIME: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 61) - 1


class Consensus(IntEnum):
    """How the visited occurrences agree with the follower that was chosen."""

    ALL = 0
    ONLY = 1
    HALF = 2
    FEWER = 3


@dataclass(frozen=True, slots=True)
class Match:
    """The occurrence that agrees longest with the end of the request, the latest of several.

    Attributes:
        position: index of the token that followed it.
        length: how many tokens agree, at most `LONGEST_COMPARED`.
        consensus: how many of the visited occurrences were followed by the same token.
    """

    position: int
    length: int
    consensus: Consensus


class Occurrences:
    """The tokens of a request, and the chains of their occurrences.

    Attributes:
        tokens: every token so far; to be read, not written.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._pair = self._pair_before = 0
        self._latest_one: dict[int, int] = {}
        self._latest_two: dict[int, int] = {}
        self._latest_four: dict[int, int] = {}
        self._earlier_one = array("i")
        self._earlier_two = array("i")
        self._earlier_four = array("i")
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Appends a token and links the contexts that end with it."""
        tokens = self.tokens
        before = tokens[-1] if tokens else -1
        tokens.append(token)
        size = len(tokens)
        pair = (before << _TOKEN_BITS) ^ token
        four = (self._pair_before * _PAIR_PRIME ^ pair) & _MASK
        self._pair_before, self._pair = self._pair, pair
        latest = self._latest_one
        self._earlier_one.append(latest.get(token, -1))
        latest[token] = size
        latest = self._latest_two
        self._earlier_two.append(latest.get(pair, -1))
        latest[pair] = size
        latest = self._latest_four
        self._earlier_four.append(latest.get(four, -1))
        latest[four] = size

    def best(self) -> Match | None:
        """The best earlier occurrence of how the request ends, None where there is none.

        Contexts of 4 tokens are asked first, then 2, then 1. Chains are made of hashes, so every
        length is compared with the tokens themselves.
        """
        if not self.tokens:
            return None
        for chain in (self._earlier_four, self._earlier_two, self._earlier_one):
            if chain[-1] >= 0 and (match := self._best_of(chain)) is not None:
                return match
        return None

    def agreement(self, position: int) -> int:
        """How many tokens before `position` agree with the last, at most `LONGEST_COMPARED`."""
        tokens = self.tokens
        size = len(tokens)
        most = min(LONGEST_COMPARED, position)
        length = 0
        while length < most and tokens[position - 1 - length] == tokens[size - 1 - length]:
            length += 1
        return length

    def _best_of(self, chain: array[int]) -> Match | None:
        tokens = self.tokens
        followers: list[int] = []
        best = best_length = 0
        position = chain[-1]
        while position >= 0 and len(followers) < VISITED:
            followers.append(tokens[position])
            length = self.agreement(position)
            if length > best_length:
                best, best_length = position, length
            position = chain[position - 1]
        if best_length == 0:
            return None
        agreeing, visited = followers.count(tokens[best]), len(followers)
        if visited == 1:
            consensus = Consensus.ONLY
        elif agreeing == visited:
            consensus = Consensus.ALL
        else:
            consensus = Consensus.HALF if 2 * agreeing >= visited else Consensus.FEWER
        return Match(best, best_length, consensus)
