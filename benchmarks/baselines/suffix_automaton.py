"""SuffixAutomatonDrafter: copies what followed the longest match of any length in the request.

The automaton holds every substring of the request. Appending a token takes amortised constant time.
The suffix link of the newest state is the longest suffix that occurred before.
Source: Blumer et al. 1985; as a drafter, SAM-Decoding.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.tokens import joined
from benchmarks.baselines.prompt_lookup import until_boundary

MARKED: Final = 4
FACTOR: Final = 2
"""Drafted tokens for each token of the match."""

_ROOT: Final = 0
_NOWHERE: Final = -1
_TOKEN_BITS: Final = 32
_TOKEN_MASK: Final = (1 << _TOKEN_BITS) - 1


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """The longest suffix that occurred before.

    Attributes:
        length: how many tokens it has.
        follower: index of its favourite next token.
        lead: by how many votes that token is the favourite.
    """

    length: int
    follower: int
    lead: int


class SuffixAutomaton:
    """The smallest automaton of all substrings of a growing list of tokens.

    A state stands for the substrings that end in the same places. It has a favourite next token:
    each time the state occurs, the token that follows is one vote, and a favourite without a lead
    is replaced. So a recent token wins at first, and a frequent one stays. Only the `MARKED`
    longest suffixes that occurred before vote; all of them would take more than constant time.

    Attributes:
        tokens: every token so far; read only.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._length = array("i", [0])
        self._link = array("i", [_NOWHERE])
        self._follower = array("i", [0])
        self._lead = array("i", [0])
        # Most states have one transition, packed as `state << 32 | token`; more go into a dict.
        self._transition = array("q", [_NOWHERE])
        self._more_transitions: dict[int, dict[int, int]] = {}
        self._last = _ROOT

    def append(self, token: int) -> None:
        self._vote(token)
        self.tokens.append(token)
        length, link = self._length, self._link
        state = self._last
        newest = self._add_state(length[state] + 1, len(self.tokens), 0)
        while state >= 0 and (target := self._next(state, token)) < 0:
            self._add_transition(state, token, newest)
            state = link[state]
        if state < 0:
            link[newest] = _ROOT
        elif length[target] == length[state] + 1:
            link[newest] = target
        else:
            link[newest] = self._split(state, token, target)
        self._last = newest

    def longest_match(self) -> SuffixMatch | None:
        """The longest suffix that occurred before, None if the last token is new."""
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
        """Splits off the substrings of `target` that are those of `state` and then `token`."""
        shorter = self._add_state(
            self._length[state] + 1, self._follower[target], self._lead[target]
        )
        self._link[shorter] = self._link[target]
        self._link[target] = shorter
        self._transition[shorter] = self._transition[target]
        if target in self._more_transitions:
            self._more_transitions[shorter] = dict(self._more_transitions[target])
        while state >= 0 and self._next(state, token) == target:
            self._add_transition(state, token, shorter)
            state = self._link[state]
        return shorter

    def _add_state(self, length: int, follower: int, lead: int) -> int:
        self._length.append(length)
        self._link.append(_NOWHERE)
        self._follower.append(follower)
        self._lead.append(lead)
        self._transition.append(_NOWHERE)
        return len(self._length) - 1

    def _next(self, state: int, token: int) -> int:
        only = self._transition[state]
        if only >= 0 and only & _TOKEN_MASK == token:
            return only >> _TOKEN_BITS
        more = self._more_transitions.get(state)
        return _NOWHERE if more is None else more.get(token, _NOWHERE)

    def _add_transition(self, state: int, token: int, target: int) -> None:
        only = self._transition[state]
        if only < 0 or only & _TOKEN_MASK == token:
            self._transition[state] = target << _TOKEN_BITS | token
        else:
            self._more_transitions.setdefault(state, {})[token] = target


class SuffixAutomatonDrafter(Drafter):
    """Copies what followed the longest match: the longer the match, the longer the draft."""

    def __init__(self) -> None:
        self.begin(())

    def begin(self, prompt: Sequence[int], references: Sequence[Sequence[int]] = ()) -> None:
        self._automaton = SuffixAutomaton()
        self.extend(joined(references, prompt))

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)

    def propose(self, limit: int) -> Draft:
        match = self._automaton.longest_match()
        if match is None:
            return NO_DRAFT
        tokens = self._automaton.tokens
        wanted = min(limit, FACTOR * match.length)
        ahead = tokens[match.follower : match.follower + max(0, wanted)]
        drafted = list(until_boundary(ahead))
        if len(drafted) < len(ahead):
            wanted = len(drafted)
        overlap = len(tokens) - match.follower
        while len(drafted) < wanted:
            drafted.append(drafted[len(drafted) - overlap])
        return Draft(tuple(drafted), "suffix", match.length) if drafted else NO_DRAFT
