"""RowClass: sizes of forward passes that compute bit-identical rows.

The order in which kernels add depends on the number of rows of a forward pass and on the number of
keys it attends to. Between two numbers at which it changes, neither drafts nor padding change a bit
of a row. Where there are no such sizes, exact answers are computed in blocks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, Final

FREE: Final = 0.03
"""Answers are exact by default if that takes at most this fraction longer."""

BLOCK_ROWS: Final = 3
"""`--exact` where no sizes of forward passes compute identical rows: the rows of every forward
pass.

Kernels for different sizes differ in the last bits, which can decide a near-tie between two logits.
So an exact answer is divided into blocks, and every forward pass computes one whole block: its
known tokens, then the draft, then padding. Whatever was drafted, a position always has the same row
in a forward pass of the same size over the same number of keys. (Thinking Machines, "Defeating
Nondeterminism in LLM Inference", 2025, use kernels with one order of summation for all sizes; MLX
has none.)

Three rows lose less than four where no draft fits, and gain nearly as much on copies.
"""

_ANY: Final = 1 << 30


@dataclass(frozen=True)
class RowClass:
    """Forward passes over `smallest` tokens or more, to which single steps are padded, compute
    identical rows, wherever in the pass a row is; without arguments, there are none.

    `levels` pairs a number of keys, ascending from 0, with the most tokens of a pass from there on;
    none may go past the next number, and beyond `end` nothing is known. `shared` is the most rows
    of a pass over several sequences, 0 for none; `rows` were compared in `seconds` to find out.
    """

    smallest: int = 1
    levels: tuple[tuple[int, int], ...] = ((0, 1),)
    end: int | None = None
    shared: int = 0
    rows: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.levels]
        known = [*starts, math.inf if self.end is None else self.end]
        if starts[:1] != [0] or known != sorted(set(known)) or self.smallest < 1:
            raise ValueError(f"no class of forward passes has such levels: {known}")

    @property
    def allows_drafts(self) -> bool:
        """Whether there is room for drafts."""
        return self.largest >= max(2, self.smallest)

    @property
    def largest(self) -> int:
        """The most tokens of a forward pass after a short context."""
        return self.levels[0][1]

    @cached_property
    def _bounds(self) -> list[int]:
        return [*(start for start, _ in self.levels), _ANY if self.end is None else self.end]

    def most(self, context: int) -> int:
        """The most tokens of a forward pass after `context` others, padding not counted; 1 or
        more."""
        keys = context + self.smallest
        level = bisect_right(self._bounds, keys)
        if level == len(self._bounds):
            return 1
        return max(1, min(self.levels[level - 1][1], self._bounds[level] - keys))

    def needs_padding(self, context: int) -> bool:
        """Whether padding takes a step past one of the numbers of keys: without it, among the rows
        of other sequences, the step would be computed differently."""
        levels = (bisect_right(self._bounds, context + rows) for rows in (1, self.smallest))
        return len(set(levels)) > 1

    @property
    def unbounded(self) -> RowClass:
        """The same class, but with drafts of any length where nothing is known."""
        if self.end is None:
            return self
        return replace(self, levels=(*self.levels, (self.end, _ANY)), end=None)

    def as_json(self) -> dict[str, Any]:
        return {
            "smallest": self.smallest,
            "levels": [list(level) for level in self.levels],
            "end": self.end,
            "shared": self.shared,
            "rows": self.rows,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, data: Any) -> RowClass:
        """Reads the output of `as_json`; raises a ValueError, KeyError or TypeError for others."""
        levels = tuple((whole(start), whole(largest)) for start, largest in data["levels"])
        end = None if data["end"] is None else whole(data["end"])
        smallest, shared, rows = (whole(data[name]) for name in ("smallest", "shared", "rows"))
        return cls(smallest, levels, end, shared, rows, float(data["seconds"]))

    def __str__(self) -> str:
        sizes = dict.fromkeys((self.smallest, self.largest))
        parts = [f"{' to '.join(map(str, sizes))} tokens compute identical rows"]
        parts += [
            f"from {start:,} tokens of context on, only up to {most}"
            for (_, before), (start, most) in pairwise(self.levels)
            if most != before
        ]
        if self.end is not None:
            parts.append(f"from {self.end:,} on, nothing is known")
        return "; ".join(parts)


def runs_of(left: Sequence[str]) -> list[tuple[int, int]]:
    """The ranges of sizes, smallest and largest, with the same outcome, given the outcomes of
    forward passes over 1, 2 ... tokens. Size 1 alone is no range."""
    runs, size = [], 1
    for _, alike in groupby(left):
        largest = size + len(list(alike)) - 1
        if largest >= 2:
            runs.append((size, largest))
        size = largest + 1
    return runs


def whole(value: Any) -> int:
    """The value, if it is a whole number and not negative; else a TypeError."""
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a whole number")
    return value
