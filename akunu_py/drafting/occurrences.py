"""Occurrences: where the last few tokens of a request occurred before, and what followed.

This is an index over one growing list of tokens, references first. It lists the places of every
token, and links each occurrence of 4 and of 2 tokens to the previous one (the hash chains of LZ77).
Appending and looking up take the same time at any length, because a look-up visits only the latest
occurrences. It knows no drafts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from itertools import accumulate
from typing import Final, NamedTuple

from akunu_py.tokens import FIRST_BOUNDARY, common_prefix_length, joined

VISITED: Final = 6
MAX_COMPARED: Final = 16

_TOKEN_BITS: Final = 32
_PAIR_PRIME: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 61) - 1


def key_of_four(first: int, second: int, third: int, fourth: int) -> int:
    """The hash under which places after these four tokens are stored."""
    pair = third << _TOKEN_BITS ^ fourth
    return ((first << _TOKEN_BITS ^ second) * _PAIR_PRIME ^ pair) & _MASK


class Consensus(IntEnum):
    """How many of the visited occurrences were followed by the same token."""

    ALL = 0
    ONLY = 1
    HALF = 2
    FEWER = 3


def consensus_of(agreeing: int, occurrences: int) -> Consensus:
    """The consensus if `agreeing` of `occurrences` (1 or more) were followed by one token."""
    if occurrences == 1:
        return Consensus.ONLY
    if agreeing == occurrences:
        return Consensus.ALL
    return Consensus.HALF if 2 * agreeing >= occurrences else Consensus.FEWER


def bigram_affinity_of(same: int, others: int) -> int:
    """The class for how often a token followed the one before it, and how often others did.

    It is 3 times the class of `others` (0, 1-2, 3-14, more) plus that of `same` (0-2, 3-6, more).
    """
    return 3 * ((others > 0) + (others > 2) + (others > 14)) + (same > 2) + (same > 6)


class Match(NamedTuple):
    """The earlier occurrence whose preceding tokens agree longest with the end of the request.

    `position` is the index of the token that followed it; `visited` has this index for every
    occurrence visited, the latest first; `consensus` says how many of these were followed by the
    same token. At most `MAX_COMPARED` tokens count as agreeing.
    """

    position: int
    length: int
    visited: list[int]
    consensus: Consensus


class Occurrences:
    """The tokens of a request, with the boundaries of references, and the chains of their
    occurrences. Read-only, except that a drafter may append its draft to `tokens` while making it,
    and must remove it afterwards. `latest_four`: the latest place after each four tokens, by
    `key_of_four`.
    """

    def __init__(
        self, prompt: Sequence[int] = (), references: Sequence[Sequence[int]] = ()
    ) -> None:
        # A context is identified by the index of the token that followed it; 0 means none.
        self.tokens: list[int] = []
        self._last = -1
        self._pair = self._pair_before = 0
        self._after_one: dict[int, array[int]] = {}
        self._latest_two: dict[int, int] = {}
        self.latest_four: dict[int, int] = {}
        self._earlier_two = array("i", (0,))
        self._earlier_four = array("i", (0,))
        self._count_two = array("i", (0,))
        self._boundaries = _boundaries(references)
        for token in joined(references, prompt):
            self.append(token)

    def for_request(
        self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()
    ) -> Occurrences:
        """The index for another request: this one, changed, if most of it can stay. So a
        conversation is not indexed again at every turn."""
        tokens = joined(references, prompt)
        shared = common_prefix_length(self.tokens, tokens)
        if len(self.tokens) - shared >= shared:  # removing a token takes as long as indexing one
            return Occurrences(prompt, references)
        self.truncate(shared)
        self._boundaries = _boundaries(references)
        for token in tokens[shared:]:
            self.append(token)
        return self

    def document(self, position: int) -> tuple[int, int]:
        if not self._boundaries:
            return 0, len(self.tokens)
        number = bisect_left(self._boundaries, position)
        start = self._boundaries[number - 1] + 1 if number else 0
        after = number < len(self._boundaries)
        return start, self._boundaries[number] if after else len(self.tokens)

    def append(self, token: int) -> None:
        self.tokens.append(token)
        size = len(self.tokens)
        pair = self._last << _TOKEN_BITS ^ token
        four = (self._pair_before * _PAIR_PRIME ^ pair) & _MASK
        self._last, self._pair_before, self._pair = token, self._pair, pair
        if (places := self._after_one.get(token)) is None:
            self._after_one[token] = array("i", (size,))
        else:
            places.append(size)
        earlier = self._latest_two.get(pair, 0)
        self._latest_two[pair] = size
        self._earlier_two.append(earlier)
        self._count_two.append(self._count_two[earlier] + 1)
        self._earlier_four.append(self.latest_four.get(four, 0))
        self.latest_four[four] = size

    def truncate(self, size: int) -> None:
        """Removes the tokens after the first `size`, as if they had never been appended."""
        for index in range(len(self.tokens) - 1, size - 1, -1):
            token, pair = self.tokens.pop(), self._pair
            self._last = self.tokens[-1] if self.tokens else -1
            self._pair, self._pair_before = self._pair_before, self._pair_at(index - 2)
            four = (self._pair_before * _PAIR_PRIME ^ pair) & _MASK
            _restore(self._latest_two, pair, self._earlier_two.pop())
            _restore(self.latest_four, four, self._earlier_four.pop())
            self._count_two.pop()
            places = self._after_one[token]
            places.pop()
            if not places:
                del self._after_one[token]

    def _pair_at(self, index: int) -> int:
        if index < 0:
            return 0
        before = self.tokens[index - 1] if index else -1
        return before << _TOKEN_BITS ^ self.tokens[index]

    def best(self, *, earliest: bool = False) -> Match | None:
        """The best earlier occurrence of the request's last tokens; None if there is none.

        Among the visited occurrences, it takes the longest matches, among these the ones with the
        most frequent next token, and among these the latest, or if asked, the `earliest`.
        """
        tokens = self.tokens
        if not tokens:
            return None
        longest: list[int] = []
        # The chain for 4 holds hashes, so the tokens themselves are compared.
        if self._earlier_four[-1]:
            visited = self._linked(self._earlier_four, self._earlier_four[-1])
            longest, length = self._longest_of(visited)
        if not longest and self._earlier_two[-1]:
            visited = self._linked(self._earlier_two, self._earlier_two[-1])
            third = tokens[-3]  # If a fourth agreed too, it would have been found above.
            longest = [index for index in visited if index > 2 and tokens[index - 3] == third]
            length = 3 if longest else 2
            longest = longest or visited
        if not longest:
            visited = longest = self._along(self._after_one[self._last])
            length = 1
        if not longest:
            return None
        best = longest[0] if len(longest) == 1 else self._favoured(longest, earliest)
        followers = [tokens[index] for index in visited]
        agreeing = followers.count(tokens[best])
        return Match(best, length, visited, consensus_of(agreeing, len(visited)))

    def after_four(self, latest: int) -> list[int]:
        """A place of `latest_four`, and the earlier ones with the same key."""
        return self._linked(self._earlier_four, latest)

    def after_last(self) -> Sequence[int]:
        """All indexes after a token equal to the last one, ascending, up to the end itself."""
        return self._after_one[self._last]

    def bigram_affinity(self, before: int, token: int) -> int:
        others = len(self._after_one[before]) - (before == self._last)
        same = self._count_two[self._latest_two.get(before << _TOKEN_BITS ^ token, 0)]
        return bigram_affinity_of(same, others - same)

    def _linked(self, chain: array[int], position: int) -> list[int]:
        """The latest indexes of a chain from `position` on, without those where a document ends."""
        tokens = self.tokens
        visited: list[int] = []
        while position and len(visited) < VISITED:
            if tokens[position] < FIRST_BOUNDARY:
                visited.append(position)
            position = chain[position]
        return visited

    def _along(self, places: array[int]) -> list[int]:
        """The latest of ascending indexes, without the end and the ends of documents."""
        tokens = self.tokens
        # Enough, even if every document ends at one of them.
        latest = places[-2 : -2 - VISITED - len(self._boundaries) : -1]
        return [index for index in latest if tokens[index] < FIRST_BOUNDARY][:VISITED]

    def _longest_of(self, visited: list[int]) -> tuple[list[int], int]:
        tokens = self.tokens
        recent = tokens[: -MAX_COMPARED - 1 : -1]
        longest: list[int] = []
        longest_length = 1
        for position in visited:
            # `agreement`, inlined: this loop takes most of the time of finding a match.
            compared, length = position - 1, 0
            for token in recent if position >= MAX_COMPARED else recent[:position]:
                if tokens[compared] != token:
                    break
                length += 1
                compared -= 1
            if length > longest_length:
                longest, longest_length = [position], length
            elif length == longest_length:
                longest.append(position)
        return longest, longest_length

    def _favoured(self, positions: list[int], earliest: bool) -> int:
        if earliest:
            positions = positions[::-1]
        followers = [self.tokens[position] for position in positions]
        return positions[followers.index(max(followers, key=followers.count))]


def _boundaries(references: Sequence[Sequence[int]]) -> list[int]:
    return [end - 1 for end in accumulate(len(reference) + 1 for reference in references)]


def _restore(latest: dict[int, int], context: int, earlier: int) -> None:
    if earlier:
        latest[context] = earlier
    else:
        del latest[context]
