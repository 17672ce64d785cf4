"""A diff that grows while a text is written, and one of texts that are there."""

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from typing import Final

_CONTEXT: Final = 3
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_NO_LINE_BREAK: Final = "\\ No newline at end of file"


def growing_diff(
    old: Sequence[str], new: Iterable[str | None], first: int = 1
) -> Iterator[str | None]:
    """Lines as of a unified diff, each as soon as it is certain, while `new` lines come.

    None, while a line is not there yet, is passed on. New lines wait until an old one is found
    again: one that occurs once, or two in a row. How long a part will be is not known at its
    heading, which tells only where it begins in `old`, counted from `first`.
    """
    counts, pending = Counter(old), list[str]()
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
        size = 1 if old[at : at + 1] == pending or (counts[line] == 1 and line.strip()) else 2
        wanted = pending[-size:]
        places = range(at, len(old) - size + 1) if len(wanted) == size and counts[line] else ()
        found = next((place for place in places if old[place : place + size] == wanted), None)
        if found is not None:
            yield from advance(old[at:found], pending[:-size], wanted)
            pending = []
    rest = old[at:]
    for tag, i, i_end, j, j_end in SequenceMatcher(None, rest, pending, False).get_opcodes():
        if tag == "equal":
            yield from advance((), (), pending[j:j_end])
        else:
            yield from advance(rest[i:i_end], pending[j:j_end], ())


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff; empty if both are the same."""
    lines = unified_diff(_LINE.findall(old), _LINE.findall(new), name, name)
    return "".join(it if it.endswith("\n") else f"{it}\n{_NO_LINE_BREAK}\n" for it in lines)
