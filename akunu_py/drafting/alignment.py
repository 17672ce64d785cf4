"""Alignment: which earlier stretch a request is copying, kept alive across the edits in it.

A source pointer marks which earlier token is expected next, and moves on while the copy holds.
Where the copy breaks, the place is kept as an anchor, and after the next tokens the copy is
searched for near it. The edit in between is learnt as a rewrite. It knows positions and tokens but
no drafts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Final, NamedTuple

from akunu_py.drafting.occurrences import MAX_COMPARED, Occurrences
from akunu_py.tokens import agreement

SOLID_RUN: Final = 8
"""A shorter run may be a coincidence: nothing is drafted from it, and it is not resumed."""

RESUMED_RUN: Final = 3
RESUMED_BONUS: Final = 8
"""Once a copy that was found again has held for `RESUMED_RUN` tokens, it counts as this many tokens
longer, because it continues a solid one."""

SEARCHED: Final = 64
"""An edit longer than this ends a copy, whether it removes tokens or adds them."""

MAX_PLACES: Final = 6
"""The most places compared per search, to bound its time."""

MAX_OLD_LENGTH: Final = 6
MAX_NEW_LENGTH: Final = 8
"""A longer edit is rarely repeated, so it is not learnt."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`old` was replaced by `new`."""

    old: tuple[int, ...]
    new: tuple[int, ...]


class Rewrites:
    """The replacements made so far while copying, for example `x` by `total`.

    A rewrite is learnt from one edit between two copied stretches. It is expected again wherever
    the copied text has the same tokens, until these are copied unchanged. There is one rewrite for
    each first token of an old run.
    """

    def __init__(self) -> None:
        self._by_first: dict[int, Rewrite] = {}

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def copy(self) -> Rewrites:
        other = Rewrites()
        other._by_first = self._by_first.copy()
        return other

    def at(self, tokens: Sequence[int], position: int) -> Rewrite | None:
        if position >= len(tokens):
            return None
        rewrite = self._by_first.get(tokens[position])
        if rewrite is None:
            return None
        end = position + len(rewrite.old)
        return rewrite if tuple(tokens[position:end]) == rewrite.old else None

    def learn(self, old: Sequence[int], new: Sequence[int], following: int) -> None:
        """Learns that a copy has `new` in place of `old`, unless they are too long to be repeated.
        The token after both anchors an edit that only adds or only removes tokens."""
        if len(old) > MAX_OLD_LENGTH or len(new) > MAX_NEW_LENGTH:
            return
        if not old or not new:
            old, new = (*old, following), (*new, following)
        if tuple(old) != tuple(new):
            self._by_first[old[0]] = Rewrite(tuple(old), tuple(new))

    def forget(self, rewrite: Rewrite) -> None:
        self._by_first.pop(rewrite.old[0], None)


class Anchor(NamedTuple):
    """Where a copy broke: the token at `source` was expected, another one is at `output`."""

    source: int
    output: int


class Resumption(NamedTuple):
    """A place near an anchor where the copy may continue.

    `position` is the index of the token expected next; the `length` tokens before it agree with the
    last ones since the break. `distance` is how far it is from where the copy would continue after
    a replacement of equal length or an insertion: 0 exactly there, 1 within 3 tokens, 2 within 12,
    3 further away.
    """

    anchor: Anchor
    position: int
    length: int
    distance: int


class Alignment:
    """The source pointer of one request: `source` is the earlier token expected next, -1 if nothing
    is copied; `run` how many tokens the copy has held, with the match it began with; `rewritten`
    how many new tokens of the expected `rewrite` have been emitted.
    """

    def __init__(self, occurrences: Occurrences) -> None:
        self._occurrences = occurrences
        self._tokens = occurrences.tokens
        self.source = -1
        self.run = 0
        self.rewrite: Rewrite | None = None
        self.rewritten = 0
        self.rewrites = Rewrites()
        self._anchor: Anchor | None = None
        self._edit: tuple[Anchor, Anchor] | None = None

    def copy(self) -> Alignment:
        """A copy that advances on its own, over the same occurrences."""
        other = copy(self)
        other.rewrites = self.rewrites.copy()
        return other

    def follow(self, position: int, length: int, *, resumed: Anchor | None = None) -> None:
        """Points at `position`, because the `length` tokens before it agree with the last ones. If
        this continues a broken copy, `resumed` is where it broke."""
        self.run = length
        here = Anchor(position - length, len(self._tokens) - length)
        self._edit = None if resumed is None else (resumed, here)
        self._arrive(position)

    def advance(self, token: int) -> None:
        """Takes the next token, before it is added to the occurrences."""
        if self.source < 0:
            return
        rewrite = self.rewrite
        if rewrite is not None and rewrite.new[self.rewritten] == token:
            self.run += 1
            self.rewritten += 1
            if self.rewritten == len(rewrite.new):
                self._arrive(self.source + len(rewrite.old))
        elif (rewrite is None or self.rewritten == 0) and self._tokens[self.source] == token:
            if rewrite is not None:
                self.rewrites.forget(rewrite)
            self.run += 1
            if self._edit is not None and self.run >= RESUMED_RUN:
                self._close_edit(*self._edit)
            self._arrive(self.source + 1)
        else:
            self._break_off()

    @property
    def has_copied(self) -> bool:
        return self._anchor is not None

    def resumption(self) -> Resumption | None:
        """The most likely place near the anchor where the last tokens occur again."""
        tokens, anchor = self._tokens, self._anchor
        if anchor is None or (gap := len(tokens) - anchor.output) > SEARCHED:
            return None
        best = best_distance = best_score = -1
        for position in self._places(anchor.source, gap):
            # Up to three agreeing tokens decide; the full length is counted at the end.
            length, most = 1, min(gap, position)
            if most > 1 and tokens[position - 2] == tokens[-2]:
                length = 3 if most > 2 and tokens[position - 3] == tokens[-3] else 2
            offset = position - anchor.source
            tokens_off = min(abs(offset - gap), 1 + abs(offset - 1))
            distance = (tokens_off > 0) + (tokens_off > 3) + (tokens_off > 12)
            score = 4 * length - (0, 1, 2, 4)[distance]
            if score > best_score:
                best, best_distance, best_score = position, distance, score
        if best < 0:
            return None
        length = agreement(tokens, best, tokens[: -min(gap, MAX_COMPARED) - 1 : -1])
        return Resumption(anchor, best, length, best_distance)

    def _places(self, source: int, gap: int) -> Sequence[int]:
        """Indexes near where a copy broke that follow a token equal to the last one."""
        places = self._occurrences.after_last()
        if len(places) == 1 or places[-2] <= source:
            return ()
        _, end = self._occurrences.document(source)
        lowest = bisect_right(places, source)
        last = bisect_right(places, min(end - 1, source + SEARCHED + gap), lowest)
        return places[lowest : min(last, lowest + MAX_PLACES)]

    def _arrive(self, position: int) -> None:
        self.source = position
        self.rewritten = 0
        self.rewrite = self.rewrites.at(self._tokens, position)

    def _break_off(self) -> None:
        if self.run >= SOLID_RUN:
            self._anchor = Anchor(self.source, len(self._tokens))
        self.source = -1
        self.run = 0
        self.rewrite = None

    def _close_edit(self, broken: Anchor, resumed: Anchor) -> None:
        self._edit = None
        self.run += RESUMED_BONUS
        if resumed.source >= broken.source and resumed.output >= broken.output:
            self.rewrites.learn(
                self._tokens[broken.source : resumed.source],
                self._tokens[broken.output : resumed.output],
                self._tokens[resumed.source],
            )
