"""Where an answer stands in what it was given, and which token it repeats next.

These are what attention heads are taught to look at while the model trains (`model.guided_heads`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile

import numpy as np

NOWHERE = -1
TARGETS = PLACE, SOURCE, AHEAD, START, END, AFTER, LINE = range(7)
"""What heads are guided to: indices into `Alignment.targets`, then `LINE`, see `line_begins`."""
_RARE = 3  # a lone token that occurs at most this often points somewhere; a comma does not
_OPENING = 3  # tokens of an answer stand before its code
_LOOKED_AT = 40  # of a longer change the first tokens tell what is quoted of it
_STRAY = 2  # tokens in a row, such as a line break, may be repeated from anywhere
Change = tuple[str, int, int, int, int]
"""As `SequenceMatcher.get_opcodes` has them, of an answer and of what it was given."""


@dataclass(frozen=True)
class Alignment:
    """For each token of an example, `[length]` each, an index into the example or `NOWHERE`.

    `place` is the token of the given text that the answer has come to: the one it repeats, or
    the one it replaces, leaves out or puts something in front of. `source` is an earlier token
    equal to this one: in the given code where the answer copies, in the instruction where it
    writes something new.

    `start` and `end` are about copies of a quote: the request quotes a name, a line or an
    expression, and the given code contains it, perhaps several times. The token after a copy has
    the first token of the copy as its `start`. Tokens of the answer that repeat or replace a part
    of a copy, and the first token after one that is left out, have its last token as their `end`.
    """

    place: np.ndarray
    source: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @classmethod
    def nowhere(cls, length: int) -> Alignment:
        return cls(*(np.full(length, NOWHERE) for _ in range(4)))

    @property
    def targets(self) -> tuple[np.ndarray, ...]:
        """What heads are guided to, at the indices `PLACE` to `AFTER`.

        The token after `place` tells, for example, whether a name ends there that begins like
        another one. `end`, or else `place`, tells whether the whole quote stands there, and the
        token after that tells whether the name goes on.
        """
        end = np.where(self.end == NOWHERE, self.place, self.end)
        ahead, after = self._next(self.place), self._next(end)
        return self.place, self.source, ahead, self.start, end, after

    @staticmethod
    def _next(target: np.ndarray) -> np.ndarray:
        """The token after `target`, where it stands before the token that is aligned, too."""
        known = (target != NOWHERE) & (target + 1 < np.arange(len(target)) - 1)
        return np.where(known, target + 1, NOWHERE)

    @property
    def turns(self) -> np.ndarray:
        """Which tokens do not simply go on from the token before: where an edit is decided."""
        goes_on = np.zeros(len(self.source), dtype=np.bool_)
        before, after = self.source[:-1], self.source[1:]
        goes_on[1:] = (before != NOWHERE) & (after == before + 1)
        return ~goes_on


def align(tokens: np.ndarray, learned: np.ndarray, *, fence: int | None = None) -> Alignment:
    """Align every learned run, an answer, with the code that it repeats.

    That stands in the answer before it or in its own request; or, where less than half of it is
    found there, in the earlier answer and request of which it repeats most, as after small talk.
    Code that the answer repeats as it is comes first, since to undo an edit is to repeat what stood
    before it. Where code begins with the token `fence`, an answer without it has no `place`, and a
    `source` only for the words that it takes up from its request.
    """
    alignment = Alignment.nowhere(len(tokens))
    stretches: list[np.ndarray] = []
    last_answer, asked = np.arange(0), 0
    for begin, end in runs(learned):
        request, answer = np.arange(asked, begin), tokens[begin:end].tolist()
        stretches.append(np.concatenate((last_answer, request)))
        if fence in (None, answer[0]):
            where = None
            if fence is not None:
                closing = len(answer) - 1 - answer[::-1].index(fence)  # a sentence may follow it
                where = _whole(tokens, stretches, answer[_OPENING : closing - 1])
            where = _nearest(tokens, stretches, answer) if where is None else where
            where = where if where is stretches[-1] else np.concatenate((where, request))
            found = _align(tokens[where].tolist(), answer)
        else:
            where, found = request, Alignment.nowhere(len(answer))
            matcher = SequenceMatcher(None, answer, tokens[where].tolist(), autojunk=False)
            found.source[:] = _quoted(tokens[where].tolist(), answer, matcher)
        where = np.append(where, NOWHERE)  # so that the index NOWHERE, -1, finds NOWHERE
        for name in ("place", "source", "end"):
            getattr(alignment, name)[begin:end] = where[getattr(found, name)]
        marked = np.flatnonzero(found.start[: len(where) - 1] != NOWHERE)
        alignment.start[where[marked]] = where[found.start[marked]]
        last_answer, asked = np.arange(begin, end), end
    return alignment


def _whole(tokens: np.ndarray, stretches: list[np.ndarray], lines: list[int]) -> np.ndarray | None:
    """The last stretch in which all code of an answer stands as it is, if there is one."""
    code = "".join(map(chr, lines))
    held = (s for s in reversed(stretches) if code in "".join(map(chr, tokens[s].tolist())))
    return next(held, None) if code else None


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


def _align(given: list[int], answer: list[int]) -> Alignment:
    """One answer's alignment, as indices into `given`; but `start` is of what is given."""
    nowhere = Alignment.nowhere(len(answer))
    place, source, end_of_named = nowhere.place, nowhere.source, nowhere.end
    matcher = SequenceMatcher(None, answer, given, autojunk=False)
    changes = _late(matcher.get_opcodes(), given, answer)
    started = False
    for tag, begin, end, at, _ in changes:
        if tag == "equal":
            started = True
            place[begin:end] = source[begin:end] = np.arange(at, at + end - begin)
        elif started and at < len(given):
            place[begin:end] = at
    for begin, end in runs(source == NOWHERE):
        source[begin:end] = _quoted(given, answer[begin:end], matcher)
    for tag, begin, end, _, _ in changes:
        if tag == "equal" and begin and end < len(answer) and source[begin - 1] != NOWHERE:
            quoted = range(source[begin - 1] + 1, source[end])
            if [given[one] for one in quoted] == answer[begin:end]:
                source[begin:end] = quoted  # a part that both names have, such as `_`
    start = np.full(len(given) + 1, NOWHERE)
    for first, last in _named(given, changes):
        start[last + 1] = first
        end_of_named[(first <= place) & (place <= last)] = last
        for tag, begin, end, at, until in changes:
            if tag != "equal" and at <= last and first < until and end < len(answer):
                end_of_named[begin : max(end, begin + 1)] = last
    return Alignment(place, source, start, end_of_named)


def _late(changes: Sequence[Change], given: list[int], answer: list[int]) -> list[Change]:
    """The changes, with deletions and insertions as late as possible.

    A deleted line and the next one may begin with the same tokens. The answer shows which of
    them it continues only after those tokens, so the deletion is moved behind them.
    """
    moved = list(changes)
    for index in range(1, len(changes) - 1):
        before, (tag, begin, end, at, until), after = moved[index - 1 : index + 2]
        if tag in ("equal", "replace") or before[0] != "equal":
            continue
        text, low, high = (given, at, until) if begin == end else (answer, begin, end)
        shift = 0
        while shift < after[2] - after[1] - 1 and text[low + shift] == text[high + shift]:
            shift += 1
        moved[index - 1] = (*before[:2], before[2] + shift, before[3], before[4] + shift)
        moved[index] = (tag, begin + shift, end + shift, at + shift, until + shift)
        moved[index + 1] = (after[0], after[1] + shift, after[2], after[3] + shift, after[4])
    return moved


def _named(given: list[int], changes: Sequence[Change]) -> set[tuple[int, int]]:
    """The first and last token of every copy of a quote (see `Alignment`) in the given code.

    The code is the part of `given` that the answer repeats; the request is the rest.
    """
    kept = [
        (at, until) for tag, _, _, at, until in changes if tag == "equal" and until - at > _STRAY
    ]
    if not kept:
        return set()
    (opening, _), (_, closing) = kept[0], kept[-1]
    request = [*given[:opening], NOWHERE, *given[closing:]]
    copies: set[tuple[int, int]] = set()
    for tag, _, _, at, until in changes:
        known = any(first <= at <= last for first, last in copies)
        if tag == "equal" or at <= opening or at >= closing or known:
            continue
        first, end = _longest_quote(given, range(opening, closing), range(at, until), request)
        size = end - first
        if size > 1 or (size and request.count(given[first]) <= _RARE):
            copies.update(
                (index, index + size - 1)
                for index in range(opening, closing - size + 1)
                if given[index : index + size] == given[first:end]
            )
    return copies


def _longest_quote(
    given: list[int], code: range, changed: range, request: list[int]
) -> tuple[int, int]:
    """The begin and end of the longest stretch of code that also occurs in the request and that
    overlaps the `changed` tokens. For an insertion, it stands beside the place of the insertion.
    """
    beside = changed[:_LOOKED_AT] or range(changed.start - 1, changed.start + 1)
    best = (changed.start, changed.start)
    for middle in beside:
        for at, token in enumerate(request):
            if token != given[middle]:
                continue
            back = range(1, min(middle - code.start, at) + 1)
            ahead = range(1, min(code.stop - middle, len(request) - at))
            left = _while(given[middle - step] == request[at - step] for step in back)
            right = 1 + _while(given[middle + step] == request[at + step] for step in ahead)
            if left + right > best[1] - best[0]:
                best = (middle - left, middle + right)
    return best


def _while(flags: Iterable[bool]) -> int:
    """How many flags are true before the first one that is not."""
    return sum(1 for _ in takewhile(bool, flags))


def _quoted(given: list[int], new: list[int], matcher: SequenceMatcher[int]) -> np.ndarray:
    """Where in `given` the parts of a new stretch are spelled out."""
    source = np.full(len(new), NOWHERE)
    matcher.set_seq1(new)
    for block in matcher.get_matching_blocks():
        if block.size > 1 or (block.size and given.count(new[block.a]) <= _RARE):
            source[block.a : block.a + block.size] = np.arange(block.b, block.b + block.size)
    return source


def line_begins(tokens: np.ndarray, breaks: np.ndarray) -> np.ndarray:
    """For each token but the first, where the line of the token before it begins.

    Both are `[..., length]`; `breaks` are the ids that end a line, the next one's indentation
    included.
    """
    begins = np.ones(tokens.shape, dtype=np.bool_)
    begins[..., 1:] = np.isin(tokens[..., :-1], breaks)
    found = np.full(tokens.shape, NOWHERE)
    starts = np.where(begins, np.arange(tokens.shape[-1]), 0)
    found[..., 1:] = np.maximum.accumulate(starts, axis=-1)[..., :-1]
    return found


def runs(flags: np.ndarray) -> Iterator[tuple[int, int]]:
    """The begin and end of every run of true values."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    yield from zip(borders[::2].tolist(), borders[1::2].tolist(), strict=True)
