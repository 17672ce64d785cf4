"""Alignment: which earlier stretch a request is copying, kept alive across the edits in it.

A source pointer says which earlier token is expected next and moves on while copying holds. Where
it breaks, the place is remembered as an anchor, and a few tokens later the copy is found again
near it. What was edited between is learnt as a rewrite. Knows positions and tokens, no drafts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from akunu_py.drafting.occurrences import Occurrences
from akunu_py.drafting.rewrites import Rewrite, Rewrites

SOLID_RUN: Final = 8
RESUMED_RUN: Final = 3
RESUMED_BONUS: Final = 8
SEARCHED_AHEAD: Final = 64
SEARCHED_BEHIND: Final = 2
LONGEST_EDIT: Final = 64
MOST_PLACES: Final = 6


class Anchor(NamedTuple):
    """Where a copy broke: `source` was expected, and `output` is where something else stands."""

    source: int
    output: int


class Resumption(NamedTuple):
    """A place near an anchor where the copy may go on.

    Attributes:
        anchor: where the copy broke.
        position: index of the token expected next.
        length: how many of the tokens since the break agree with those before `position`.
        nearness: how far it is from where a replacement of equal length, or an insertion, would
            go on: 0 in place, 1 within 3 tokens, 2 within 12, 3 farther.
    """

    anchor: Anchor
    position: int
    length: int
    nearness: int


class Alignment:
    """The source pointer of one request.

    Attributes:
        source: index of the earlier token expected next, -1 where no copy is under way.
        run: how many tokens the copy has held for, what led to it included.
        rewrite: the rewrite under way at `source`, if any; `rewritten` of its tokens have come.
        rewrites: the edits learnt so far.
    """

    def __init__(self, occurrences: Occurrences) -> None:
        self._occurrences = occurrences
        self._tokens = occurrences.tokens
        self.source = -1
        self.run = 0
        self.rewrite: Rewrite | None = None
        self.rewritten = 0
        self.rewrites = Rewrites()
        self._anchors: tuple[Anchor, ...] = ()
        self._edit: tuple[Anchor, Anchor] | None = None

    def follow(self, position: int, length: int, *, resumed: Anchor | None = None) -> None:
        """Points at `position`, which rests on a match of `length` tokens.

        Args:
            position: index of the token expected next.
            length: how many tokens before it agree with the last ones.
            resumed: where the copy broke that goes on here, if it is a copy that goes on.
        """
        self.run = length
        self._edit = None
        if resumed is not None:
            here = Anchor(position - length, len(self._tokens) - length)
            self._edit = (resumed, here)
        self._arrive(position)

    def advance(self, token: int) -> None:
        """Compares the next token, which is not in the occurrences yet, with what was expected."""
        if self.source < 0:
            return
        rewrite = self.rewrite
        if rewrite is not None and rewrite.new[self.rewritten] == token:
            self.run += 1
            self.rewritten += 1
            if self.rewritten == len(rewrite.new):
                self.rewrites.confirm(rewrite)
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
        """Whether a copy worth the name was made already, so that its end is known."""
        return bool(self._anchors)

    def in_place(self) -> tuple[Anchor, int] | None:
        """Where the copy broke, and where it goes on if what stands since replaces as much.

        None where no copy broke, or too long ago to go on at all.
        """
        if not self._anchors:
            return None
        anchor = self._anchors[0]
        replaced = len(self._tokens) - anchor.output
        if replaced > LONGEST_EDIT:
            return None
        position = anchor.source + replaced
        _, end = self._occurrences.document(anchor.source)
        return (anchor, position) if position < end else None

    def resumption(self) -> Resumption | None:
        """The likeliest place near an anchor where the last tokens are found again."""
        tokens = self._tokens
        best: tuple[Anchor, int, int] | None = None
        best_score = -1
        for anchor in self._anchors:
            source, output = anchor
            gap = len(tokens) - output
            if gap > LONGEST_EDIT:
                break  # The one before it broke off earlier still.
            for position in self._places(source, gap):
                # More than three agreeing tokens decide nothing: they are counted in the end.
                length, most = 1, min(gap, position)
                if most > 1 and tokens[position - 2] == tokens[-2]:
                    length = 3 if most > 2 and tokens[position - 3] == tokens[-3] else 2
                if 4 * length <= best_score:
                    continue
                offset = position - source
                distance = min(abs(offset - gap), 1 + abs(offset - 1))
                nearness = (distance > 0) + (distance > 3) + (distance > 12)
                score = 4 * length - (0, 1, 2, 4)[nearness]
                if score > best_score:
                    best, best_score = (anchor, position, nearness), score
        if best is None:
            return None
        anchor, position, nearness = best
        length = min(self._occurrences.agreement(position), len(tokens) - anchor.output)
        return Resumption(anchor, position, length, nearness)

    def _places(self, source: int, gap: int) -> Sequence[int]:
        """Indexes near where a copy broke that follow a token like the last one."""
        places = self._occurrences.after_last()
        before = source - SEARCHED_BEHIND
        if len(places) == 1 or places[-2] <= before:
            return ()
        first, end = self._occurrences.document(source)
        lowest = bisect_right(places, max(first, before))
        last = bisect_right(places, min(end - 1, source + SEARCHED_AHEAD + gap), lowest)
        return places[lowest : min(last, lowest + MOST_PLACES)]

    def _arrive(self, position: int) -> None:
        self.source = position
        self.rewritten = 0
        self.rewrite = self.rewrites.at(self._tokens, position)

    def _break_off(self) -> None:
        if self.run >= SOLID_RUN:
            here = Anchor(self.source, len(self._tokens))
            self._anchors = (here, *self._anchors[:1])
        self.source = -1
        self.run = 0
        self.rewrite = None

    def _close_edit(self, broken: Anchor, resumed: Anchor) -> None:
        """Learns what was edited between where the copy broke and where it held again."""
        self._edit = None
        self.run += RESUMED_BONUS
        if resumed.source >= broken.source and resumed.output >= broken.output:
            self.rewrites.learn(
                self._tokens[broken.source : resumed.source],
                self._tokens[broken.output : resumed.output],
                self._tokens[resumed.source],
            )
