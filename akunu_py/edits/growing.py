"""A diff that grows while a text is written, one of texts that are there, and the lines that two
texts have in common. All take about linear time, however often lines are repeated."""

import re
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from difflib import Match, SequenceMatcher
from itertools import groupby
from typing import Final

_CONTEXT: Final = 3
_MOST_PAIRS: Final = 1 << 12
"""Pairs of lines, one of each text, in which `SequenceMatcher` looks: it may take the cube."""
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_NO_LINE_BREAK: Final = "\\ No newline at end of file"


class LineMatcher(SequenceMatcher[str]):
    """Finds the lines that two texts have in common, around those that occur once in each, as a
    patience diff does; the opcodes come from `SequenceMatcher`."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__()
        self._old = old
        self._new = new

    def get_matching_blocks(self) -> list[Match]:
        """Runs of equal lines, in order, and an empty one at the end."""
        old, new, found = self._old, self._new, list[Match]()
        before = after = 0  # where the last run ends
        for at, to in ((0, 0), *self._anchors(), (len(old), len(new))):
            if at < before:
                continue
            back = ahead = 0
            while min(at - before, to - after) > back and old[at - back - 1] == new[to - back - 1]:
                back += 1
            while old[at + ahead : at + ahead + 1] == new[to + ahead : to + ahead + 1] != []:
                ahead += 1
            found += self._between(before, at - back, after, to - back)
            found += [Match(at - back, to - back, back + ahead)] if back + ahead else []
            before, after = at + ahead, to + ahead
        return [*found, Match(len(old), len(new), 0)]

    def _anchors(self) -> list[tuple[int, int]]:
        """Where lines are that occur once in each text: the most of them that are in order."""
        counts, places = Counter(self._old), {line: to for to, line in enumerate(self._new)}
        counts.update(self._new)
        ends, tops = list[int](), list[int]()  # of the piles of patience sorting
        chains, found = list[tuple[int, int, int]](), list[tuple[int, int]]()
        for at, line in enumerate(self._old):
            if counts[line] == 2 and line in places:
                pile = bisect_left(ends, to := places[line])
                chains.append((at, to, tops[pile - 1] if pile else -1))
                ends[pile : pile + 1], tops[pile : pile + 1] = [to], [len(chains) - 1]
        top = tops[-1] if tops else -1
        while top >= 0:
            at, to, top = chains[top]
            found.append((at, to))
        return found[::-1]

    def _between(self, at: int, at_end: int, to: int, to_end: int) -> list[Match]:
        old, new = self._old[at:at_end], self._new[to:to_end]
        if len(old) * len(new) <= _MOST_PAIRS:
            *found, _ = SequenceMatcher(None, old, new, False).get_matching_blocks()
            return [Match(at + one.a, to + one.b, one.size) for one in found]
        is_same = [one == other for one, other in zip(old, new, strict=False)]
        groups = groupby(range(len(old) if len(old) == len(new) else 0), is_same.__getitem__)
        runs = [list(group) for same, group in groups if same]
        return [Match(at + run[0], to + run[0], len(run)) for run in runs]


def growing_diff(
    old: Sequence[str], new: Iterable[str | None], first: int = 1
) -> Iterator[str | None]:
    """Lines as of a unified diff, each as soon as it is certain, while `new` lines come.

    None, while a line is not there yet, is passed on. New lines wait until an old one is found
    again: one that occurs once, or two in a row. How long a part will be is not known at its
    heading, which tells only where it begins in `old`, counted from `first`.
    """
    places, pending = defaultdict[tuple[str, ...], list[int]](list), list[str]()
    for place in range(len(old)):
        places[(old[place],)].append(place)
        places[tuple(old[place : place + 2])].append(place)
    before: deque[str] = deque(maxlen=_CONTEXT)
    at = after = 0
    has_gap = True

    def advance(removed: Sequence[str], added: Sequence[str], same: Sequence[str]) -> Iterator[str]:
        nonlocal at, after, has_gap
        if removed or added:
            if has_gap:
                yield f"@@ line {first + at - len(before)} @@"
            yield from (f" {line}" for line in before)
            yield from (f"-{line}" for line in removed)
            yield from (f"+{line}" for line in added)
            before.clear()
            after, has_gap = _CONTEXT, False
        for line in same:
            if after:
                after -= 1
                yield f" {line}"
            else:
                has_gap = has_gap or len(before) == _CONTEXT
                before.append(line)
        at += len(removed) + len(same)

    for line in new:
        if line is None:
            yield None
            continue
        pending.append(line)
        is_next = old[at : at + 1] == pending
        size = 1 if is_next or (line.strip() and len(places.get((line,), ())) == 1) else 2
        known = places.get(tuple(pending[-size:]), []) if len(pending) >= size else []
        for found in known[(where := bisect_left(known, at)) : where + 1]:
            yield from advance(old[at:found], pending[:-size], pending[-size:])
            pending = []
    rest = old[at:]
    for tag, i, i_end, j, j_end in LineMatcher(rest, pending).get_opcodes():
        if tag == "equal":
            yield from advance((), (), pending[j:j_end])
        else:
            yield from advance(rest[i:i_end], pending[j:j_end], ())


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff; empty if both are the same."""
    before, after = _LINE.findall(old), _LINE.findall(new)
    lines = [f"--- {name}\n", f"+++ {name}\n"] if old != new else []
    for group in LineMatcher(before, after).get_grouped_opcodes(_CONTEXT):
        (_, i, _, j, _), (_, _, i_end, _, j_end) = group[0], group[-1]
        lines.append(f"@@ -{_range(i, i_end)} +{_range(j, j_end)} @@\n")
        for tag, i, i_end, j, j_end in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[i:i_end]]
            else:
                lines += [f"-{line}" for line in before[i:i_end]]
                lines += [f"+{line}" for line in after[j:j_end]]
    return "".join(it if it.endswith("\n") else f"{it}\n{_NO_LINE_BREAK}\n" for it in lines)


def _range(start: int, end: int) -> str:
    """Lines as the heading of a part tells them; empty ranges are after a line."""
    first = start + (end > start)
    return f"{first}" if end - start == 1 else f"{first},{end - start}"
