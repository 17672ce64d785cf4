"""Where an answer stands in what it was given, and which token it repeats next.

These are what attention heads are taught to look at while the model trains; see `guidance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np

NOWHERE = -1
PLACE, SOURCE, AHEAD = range(3)
"""What heads are guided to, as indices into `Alignment.targets`."""
_RARE = 3
"""A lone token that occurs at most this often points somewhere; a comma does not."""


@dataclass(frozen=True)
class Alignment:
    """For each token of an example, `[length]` each, an index into the example or `NOWHERE`.

    `place` is the token of the given text that the answer has come to: the one it repeats, or
    the one it replaces, leaves out or puts something in front of. `source` is an earlier token
    equal to this one: in the given code where the answer copies, in the instruction where it
    writes something new.
    """

    place: np.ndarray
    source: np.ndarray

    @classmethod
    def nowhere(cls, length: int) -> Alignment:
        return cls(np.full(length, NOWHERE), np.full(length, NOWHERE))

    @property
    def ahead(self) -> np.ndarray:
        """The token after `place`, where it stands before the token that is aligned, too.

        It tells, for example, whether a name ends there that begins like another one."""
        after = self.place + 1
        known = (self.place != NOWHERE) & (after < np.arange(len(after)) - 1)
        return np.where(known, after, NOWHERE)

    @property
    def targets(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`place`, `source` and `ahead`, at the indices `PLACE`, `SOURCE` and `AHEAD`."""
        return self.place, self.source, self.ahead

    @property
    def turns(self) -> np.ndarray:
        """Which tokens do not simply go on from the token before: where an edit is decided."""
        goes_on = np.zeros(len(self.source), dtype=np.bool_)
        before, after = self.source[:-1], self.source[1:]
        goes_on[1:] = (before != NOWHERE) & (after == before + 1)
        return ~goes_on


def align(tokens: np.ndarray, learned: np.ndarray, *, fence: int | None = None) -> Alignment:
    """Align every learned run, an answer, with the code that it repeats.

    That is what lies between it and the answer before it, or, where it repeats little of that, the
    stretch between two earlier answers of which it repeats most: after small talk, or to undo an
    edit. Where code begins with the token `fence`, an answer without it has no `place`, and a
    `source` only for the words that it takes up from its request.
    """
    alignment = Alignment.nowhere(len(tokens))
    stretches: list[np.ndarray] = []
    last_answer, asked = np.arange(0), 0
    for begin, end in runs(learned):
        request, answer = np.arange(asked, begin), tokens[begin:end].tolist()
        stretches.append(np.concatenate((last_answer, request)))
        if fence in (None, answer[0]):
            where = _nearest(tokens, stretches, answer)
            where = where if where is stretches[-1] else np.concatenate((where, request))
            place, source = _align(tokens[where].tolist(), answer)
        else:
            where, place = request, np.full(len(answer), NOWHERE)
            matcher = SequenceMatcher(None, answer, tokens[where].tolist(), autojunk=False)
            source = _quoted(tokens[where].tolist(), answer, matcher)
        where = np.append(where, NOWHERE)  # which is what NOWHERE, the last index, finds
        alignment.place[begin:end], alignment.source[begin:end] = where[place], where[source]
        last_answer, asked = np.arange(begin, end), end
    return alignment


def _nearest(tokens: np.ndarray, stretches: list[np.ndarray], answer: list[int]) -> np.ndarray:
    """The last stretch if it holds half of the answer, or else the one that holds most of it."""
    matcher = SequenceMatcher(None, [0], answer, autojunk=False)
    best, most = stretches[-1], -1
    for stretch in reversed(stretches):
        matcher.set_seq1(tokens[stretch].tolist())
        held = sum(block.size for block in matcher.get_matching_blocks())
        if held > most:
            best, most = stretch, held
        if stretch is stretches[-1] and (2 * held >= len(answer) or len(stretches) == 1):
            return stretch
    return best


def _align(given: list[int], answer: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """`place` and `source` of one answer, as indices into `given`."""
    place, source = np.full(len(answer), NOWHERE), np.full(len(answer), NOWHERE)
    matcher = SequenceMatcher(None, answer, given, autojunk=False)
    started = False
    for tag, begin, end, at, _ in matcher.get_opcodes():
        if tag == "equal":
            started = True
            place[begin:end] = source[begin:end] = np.arange(at, at + end - begin)
        elif started and at < len(given):
            place[begin:end] = at
    for begin, end in runs(source == NOWHERE):
        source[begin:end] = _quoted(given, answer[begin:end], matcher)
    return place, source


def _quoted(given: list[int], new: list[int], matcher: SequenceMatcher[int]) -> np.ndarray:
    """Where in `given` the parts of a new stretch are spelled out."""
    source = np.full(len(new), NOWHERE)
    matcher.set_seq1(new)
    for block in matcher.get_matching_blocks():
        if block.size > 1 or (block.size and given.count(new[block.a]) <= _RARE):
            source[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return source


def runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """The begin and end of every run of true values."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True)
