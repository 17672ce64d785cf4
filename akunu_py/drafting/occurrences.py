"""Occurrences: where the last few tokens of a request stood before, and what followed.

An index over one growing list of tokens, that of references first: for contexts of 4, 2 and 1
tokens it links every occurrence to the one before it (the hash chains of LZ77). Appending costs the
same at any length, and so does a look-up, because only the latest few occurrences are visited.
Knows no drafts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from akunu_py.drafting.references import FIRST_BOUNDARY

VISITED: Final = 6
LONGEST_COMPARED: Final = 16

_TOKEN_BITS: Final = 32
_PAIR_PRIME: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 61) - 1


class Consensus(IntEnum):
    """How many of some occurrences were followed by the same token."""

    ALL = 0
    ONLY = 1
    HALF = 2
    FEWER = 3


def consensus(agreeing: int, occurrences: int) -> Consensus:
    """The consensus of `agreeing` occurrences of `occurrences`, 1 or more."""
    if occurrences == 1:
        return Consensus.ONLY
    if agreeing == occurrences:
        return Consensus.ALL
    return Consensus.HALF if 2 * agreeing >= occurrences else Consensus.FEWER


class Match(NamedTuple):
    """An occurrence that agrees longest with the end of the request.

    Attributes:
        position: index of the token that followed it.
        length: how many tokens agree, at most `LONGEST_COMPARED`.
        visited: such indexes of all occurrences that were visited, latest first.
        consensus: how many of them were followed by the same token.
    """

    position: int
    length: int
    visited: tuple[int, ...]
    consensus: Consensus


class Occurrences:
    """The tokens of a request, and the chains of their occurrences.

    Attributes:
        tokens: every token so far, and the boundaries of references; to be read, not written.
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._pair = self._pair_before = 0
        self._followers: dict[int, int] = {}
        self._pairs: dict[int, int] = {}
        self._latest_one: dict[int, int] = {}
        self._latest_two: dict[int, int] = {}
        self._latest_four: dict[int, int] = {}
        self._earlier_one = array("i")
        self._earlier_two = array("i")
        self._earlier_four = array("i")
        self._boundaries: list[int] = []
        self.append_all(tokens)

    def append_all(self, tokens: Iterable[int]) -> None:
        """Appends tokens in turn."""
        for token in tokens:
            self.append(token)

    def close_document(self) -> None:
        """Ends a reference: what follows it in the list does not follow it in the text."""
        self._boundaries.append(len(self.tokens))
        self.append(FIRST_BOUNDARY + len(self._boundaries))

    def document(self, position: int) -> tuple[int, int]:
        """Where the document around a position begins, and where it ends."""
        number = bisect_left(self._boundaries, position)
        start = self._boundaries[number - 1] + 1 if number else 0
        after = number < len(self._boundaries)
        return start, self._boundaries[number] if after else len(self.tokens)

    def append(self, token: int) -> None:
        """Appends a token and links the contexts that end with it."""
        tokens = self.tokens
        before = tokens[-1] if tokens else -1
        tokens.append(token)
        size = len(tokens)
        pair = (before << _TOKEN_BITS) ^ token
        four = (self._pair_before * _PAIR_PRIME ^ pair) & _MASK
        self._pair_before, self._pair = self._pair, pair
        self._followers[before] = self._followers.get(before, 0) + 1
        self._pairs[pair] = self._pairs.get(pair, 0) + 1
        latest = self._latest_one
        self._earlier_one.append(latest.get(token, -1))
        latest[token] = size
        latest = self._latest_two
        self._earlier_two.append(latest.get(pair, -1))
        latest[pair] = size
        latest = self._latest_four
        self._earlier_four.append(latest.get(four, -1))
        latest[four] = size

    def best(self, *, earliest: bool = False) -> Match | None:
        """The best earlier occurrence of how the request ends, None where there is none.

        The longest match is taken, among these the follower that most of them have, and among
        these the latest occurrence, or the earliest if that is asked for.

        Contexts of 4 tokens are asked first, then 2, then 1. Chains are made of hashes, so every
        length is compared with the tokens themselves.
        """
        if not self.tokens:
            return None
        for chain in (self._earlier_four, self._earlier_two, self._earlier_one):
            if chain[-1] >= 0 and (match := self._best_of(chain, earliest)) is not None:
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

    def followed(self, before: int, token: int) -> tuple[int, int]:
        """How often `token` followed `before` in all there is, and how often another did."""
        same = self._pairs.get((before << _TOKEN_BITS) ^ token, 0)
        return same, self._followers.get(before, 0) - same

    def _best_of(self, chain: array[int], earliest: bool) -> Match | None:
        tokens = self.tokens
        ends_at = len(tokens) - 1
        visited: list[int] = []
        longest: list[int] = []
        longest_length = 1
        position = chain[ends_at]
        while position >= 0 and len(visited) < VISITED:
            if tokens[position] >= FIRST_BOUNDARY:
                position = chain[position - 1]
                continue
            visited.append(position)
            # `agreement`, spelled out: this loop is most of what a proposal costs.
            compared, length = position - 1, 0
            while length < LONGEST_COMPARED and tokens[compared] == tokens[ends_at - length]:
                length += 1
                compared -= 1
                if compared < 0:
                    break
            if length > longest_length:
                longest, longest_length = [position], length
            elif length == longest_length:
                longest.append(position)
            position = chain[position - 1]
        if not longest:
            return None
        best = longest[0] if len(longest) == 1 else self._favoured(longest, earliest)
        follower = tokens[best]
        agreeing = 0
        for position in visited:
            agreeing += tokens[position] == follower
        agreed = consensus(agreeing, len(visited))
        return Match(best, longest_length, tuple(visited), agreed)

    def _favoured(self, positions: list[int], earliest: bool) -> int:
        """Of positions, latest first, one whose token most of them have."""
        followers = [self.tokens[position] for position in positions]
        if earliest:
            positions.reverse()
            followers.reverse()
        return positions[followers.index(max(followers, key=followers.count))]
