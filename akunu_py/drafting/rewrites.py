"""Rewrites: what the request has replaced by what while it copied, `x` by `total` say.

A rewrite is learnt from one edit between two copied stretches and is expected again wherever the
copied text shows the same tokens; it is forgotten once they are copied unchanged. Token runs come
in and go out; where in the text they stand is the caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LONGEST_OLD: Final = 6
LONGEST_NEW: Final = 8


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`old` was replaced by `new`, and was so again `repeats` times."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    repeats: int = 0


class Rewrites:
    """The rewrites of one request, one for each token that an old run begins with."""

    def __init__(self) -> None:
        self._by_first: dict[int, Rewrite] = {}

    def __bool__(self) -> bool:
        return bool(self._by_first)

    def at(self, tokens: Sequence[int], position: int) -> Rewrite | None:
        """The rewrite expected where copying has arrived, None where the copy goes on plainly."""
        if position >= len(tokens):
            return None
        rewrite = self._by_first.get(tokens[position])
        if rewrite is None:
            return None
        end = position + len(rewrite.old)
        return rewrite if tuple(tokens[position:end]) == rewrite.old else None

    def learn(self, old: Sequence[int], new: Sequence[int], following: int) -> None:
        """Notes an edit; runs too long to be a habit are passed over.

        Args:
            old: the tokens left out of the copy.
            new: the tokens put in their place.
            following: the token after both, which anchors an edit that only adds or only removes.
        """
        if len(old) > LONGEST_OLD or len(new) > LONGEST_NEW:
            return
        if not old or not new:
            old, new = (*old, following), (*new, following)
        if (run := tuple(old)) != tuple(new):
            known = self._by_first.get(run[0])
            again = known is not None and (known.old, known.new) == (run, tuple(new))
            repeats = known.repeats + 1 if known is not None and again else 0
            self._by_first[run[0]] = Rewrite(run, tuple(new), repeats)

    def confirm(self, rewrite: Rewrite) -> None:
        """Notes that a rewrite was made again."""
        repeated = Rewrite(rewrite.old, rewrite.new, rewrite.repeats + 1)
        self._by_first[rewrite.old[0]] = repeated

    def forget(self, rewrite: Rewrite) -> None:
        """Notes that the old run was copied as it stood."""
        self._by_first.pop(rewrite.old[0], None)
