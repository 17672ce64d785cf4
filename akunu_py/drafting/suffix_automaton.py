"""SuffixAutomatonDrafter: the longest match of any length over the whole request, found online.

The automaton holds every stretch of the request; appending a token takes amortised constant time
and leaves, as the suffix link of the newest state, the longest stretch at the end that occurred
before. Source: Blumer et al. 1985; as a drafter, SAM-Decoding.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, joined, until_boundary

MARKED: Final = 4
SHORTEST_MATCH: Final = 1
FACTOR: Final = 2

_ROOT: Final = 0
_NOWHERE: Final = -1
_TOKEN_BITS: Final = 32
_TOKEN_MASK: Final = (1 << _TOKEN_BITS) - 1


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """A stretch at the end that occurred before.

    Attributes:
        length: how many tokens it has; no longer one occurred before.
        follower: index of the token that followed it, of the follower that is favoured.
        lead: by how many votes that follower is favoured.
    """

    length: int
    follower: int
    lead: int


class SuffixAutomaton:
    """The smallest automaton of all stretches of a growing list of tokens.

    A state stands for stretches that end in the same places, and favours one follower of theirs:
    each time it is met, the token that comes is one vote, and a favourite without a lead gives
    way. So what is recent wins at first, and what is frequent holds. Only the `MARKED` longest
    matches at the end vote; all shorter ones would cost more than constant time.

    Attributes:
        tokens: every token so far; to be read, not written.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._length = array("i", [0])
        self._link = array("i", [_NOWHERE])
        self._follower = array("i", [0])
        self._lead = array("i", [0])
        # Most states have one way on, packed as `state << 32 | token`; the others have a dict.
        self._way = array("q", [_NOWHERE])
        self._ways: dict[int, dict[int, int]] = {}
        self._last = _ROOT

    def append(self, token: int) -> None:
        """Appends a token."""
        self._vote(token)
        self.tokens.append(token)
        length, link = self._length, self._link
        state = self._last
        newest = self._add_state(length[state] + 1, len(self.tokens), 0)
        while state >= 0 and (target := self._next(state, token)) < 0:
            self._lead_on(state, token, newest)
            state = link[state]
        if state < 0:
            link[newest] = _ROOT
        elif length[target] == length[state] + 1:
            link[newest] = target
        else:
            link[newest] = self._split(state, token, target)
        self._last = newest

    def longest_match(self) -> SuffixMatch | None:
        """The longest stretch at the end that occurred before, None where no token did."""
        state = self._link[self._last]
        if state <= _ROOT:
            return None
        return SuffixMatch(self._length[state], self._follower[state], self._lead[state])

    def _vote(self, token: int) -> None:
        here = len(self.tokens)
        state = self._link[self._last]
        for _ in range(MARKED):
            if state <= _ROOT:
                return
            if self.tokens[self._follower[state]] == token:
                self._follower[state] = here
                self._lead[state] += 1
            elif self._lead[state]:
                self._lead[state] -= 1
            else:
                self._follower[state] = here
            state = self._link[state]

    def _split(self, state: int, token: int, target: int) -> int:
        """Parts the stretches of `target` that end `state` and `token` from its longer ones."""
        shorter = self._add_state(
            self._length[state] + 1, self._follower[target], self._lead[target]
        )
        self._link[shorter] = self._link[target]
        self._link[target] = shorter
        self._way[shorter] = self._way[target]
        if target in self._ways:
            self._ways[shorter] = dict(self._ways[target])
        while state >= 0 and self._next(state, token) == target:
            self._lead_on(state, token, shorter)
            state = self._link[state]
        return shorter

    def _add_state(self, length: int, follower: int, lead: int) -> int:
        self._length.append(length)
        self._link.append(_NOWHERE)
        self._follower.append(follower)
        self._lead.append(lead)
        self._way.append(_NOWHERE)
        return len(self._length) - 1

    def _next(self, state: int, token: int) -> int:
        way = self._way[state]
        if way >= 0 and way & _TOKEN_MASK == token:
            return way >> _TOKEN_BITS
        ways = self._ways.get(state)
        return _NOWHERE if ways is None else ways.get(token, _NOWHERE)

    def _lead_on(self, state: int, token: int, target: int) -> None:
        way = self._way[state]
        if way < 0 or way & _TOKEN_MASK == token:
            self._way[state] = target << _TOKEN_BITS | token
        else:
            self._ways.setdefault(state, {})[token] = target


class SuffixAutomatonDrafter:
    """Copies what followed the longest match, the farther the longer the match is.

    Args:
        shortest_match: nothing is drafted on a match of fewer tokens.
        factor: how many tokens are drafted for each token of the match.
    """

    def __init__(self, shortest_match: int = SHORTEST_MATCH, factor: int = FACTOR) -> None:
        self._shortest_match = shortest_match
        self._factor = factor
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._automaton = SuffixAutomaton()
        self.extend(joined(references, prompt))

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)

    def propose(self, limit: int) -> Draft:
        match = self._automaton.longest_match()
        if match is None or match.length < self._shortest_match:
            return NO_DRAFT
        tokens = self._automaton.tokens
        wanted = min(limit, self._factor * match.length)
        ahead = tokens[match.follower : match.follower + max(0, wanted)]
        drafted = list(until_boundary(ahead))
        if len(drafted) < len(ahead):
            wanted = len(drafted)
        overlap = len(tokens) - match.follower
        while len(drafted) < wanted:
            drafted.append(drafted[len(drafted) - overlap])
        return Draft(tuple(drafted), "suffix", match.length) if drafted else NO_DRAFT

    def feedback(self, draft: Draft, accepted: int) -> None:
        pass
