"""GrowingDiff: a diff of a text that is being written, line by line, as far as it is certain."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, unified_diff
from typing import Final, NamedTuple

_CONTEXT: Final = 3
_NO_NEWLINE: Final = "\\ No newline at end of file"


class DiffLine(NamedTuple):
    """A line of a diff, after its mark: `+`, `-`, a space, or `@` for a heading."""

    mark: str
    text: str


class GrowingDiff:
    """Compares lines with old ones as they come; a heading tells their numbers after a gap.

    New lines wait until an old line is found again: one that occurs once, or two in a row.
    """

    def __init__(self, old: Sequence[str], first: int = 1) -> None:
        self._old = old
        self._counts = Counter(old)
        self._first = first
        self._at = 0
        self._written = 0
        self._pending: list[str] = []
        self._before: deque[str] = deque(maxlen=_CONTEXT)
        self._after = 0
        self._has_gap = True

    def feed(self, line: str) -> Iterator[DiffLine]:
        """Takes the next line; returns what is certain now."""
        self._pending.append(line)
        found = self._found_again()
        if found is None:
            return
        at, size = found
        yield from self._change(self._old[self._at : at], self._pending[:-size])
        for same in self._pending[-size:]:
            yield from self._same(same)
        self._at, self._pending = at + size, []

    def end(self) -> Iterator[DiffLine]:
        """What remains when the text has ended."""
        old, new = self._old[self._at :], self._pending
        for tag, i, i_end, j, j_end in SequenceMatcher(None, old, new, False).get_opcodes():
            if tag == "equal":
                for same in new[j:j_end]:
                    yield from self._same(same)
                self._at += i_end - i
            else:
                yield from self._change(old[i:i_end], new[j:j_end])
                self._at += i_end - i

    def _found_again(self) -> tuple[int, int] | None:
        """The old place of the last new lines, and how many of these are there."""
        old, line = self._old, self._pending[-1]
        if len(self._pending) == 1 and self._at < len(old) and old[self._at] == line:
            return self._at, 1
        size = 1 if self._counts[line] == 1 and line.strip() else 2
        wanted = self._pending[-size:]
        if len(wanted) < size or not self._counts[line]:
            return None
        for at in range(self._at, len(old) - size + 1):
            if old[at : at + size] == wanted:
                return at, size
        return None

    def _change(self, removed: Sequence[str], added: Sequence[str]) -> Iterator[DiffLine]:
        if not removed and not added:
            return
        if self._has_gap:
            before = len(self._before)
            old, new = self._first + self._at - before, self._first + self._written - before
            yield DiffLine("@", f"-{old} +{new}")
        yield from (DiffLine(" ", line) for line in self._before)
        yield from (DiffLine("-", line) for line in removed)
        yield from (DiffLine("+", line) for line in added)
        self._before.clear()
        self._written += len(added)
        self._after, self._has_gap = _CONTEXT, False

    def _same(self, line: str) -> Iterator[DiffLine]:
        self._written += 1
        if self._after:
            self._after -= 1
            yield DiffLine(" ", line)
            return
        self._has_gap = self._has_gap or len(self._before) == _CONTEXT
        self._before.append(line)


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff; empty if both are the same."""
    both = ([f"{line}\n" for line in text.split("\n")] for text in (old, new))
    both = ([*lines[:-1], *filter(None, [lines[-1][:-1]])] for lines in both)
    lines = unified_diff(*both, name, name)
    return "".join(it if it.endswith("\n") else f"{it}\n{_NO_NEWLINE}\n" for it in lines)
