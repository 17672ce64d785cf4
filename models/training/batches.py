"""Rows of tokens for training, drawn from shards in given proportions.

A row holds whole examples; what is left at its end is filled with a piece of code. The draw
depends on the seed and the step alone, so a resumed run sees what an unbroken one would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.training import repeats
from models.training.copies import NOT_COPIED, sources_of
from models.training.examples import Shard

REPEATS = "repeats"
CODE = "code"
COPYING_KINDS = ("edits", "long_edits")
"""Kinds whose answers are aligned with what they copy."""
_RANDOM_STRETCHES = 0.3
_LONGEST_STRETCH = 120
_ATTEMPTS_TO_FIT = 6


@dataclass(frozen=True)
class Batch:
    """`[rows, length + 1]` each: tokens, their kinds, and where in the row they are copied from.

    A kind is -1 where a token carries no loss, and a source `NOT_COPIED` where it has none.
    """

    tokens: np.ndarray
    kinds: np.ndarray
    sources: np.ndarray


class Batches:
    """Draws batches; `shards` maps a kind to its examples and must have `code`."""

    def __init__(
        self, shards: Mapping[str, Shard], *, vocabulary: np.ndarray, end: int, seed: int
    ) -> None:
        self.kind_names = (REPEATS, *sorted(shards))
        self._shards = shards
        self._vocabulary = vocabulary
        self._end = end
        self._seed = seed

    def draw(self, step: int, *, rows: int, length: int, mix: Mapping[str, float]) -> Batch:
        """The batch of a step; `mix` gives each kind's share of the tokens."""
        rng = np.random.default_rng((self._seed, step))
        spent = {kind: rng.random() * 64 * share for kind, share in mix.items() if share > 0}
        tokens = np.full((rows, length + 1), self._end, dtype=np.int64)
        kinds = np.full((rows, length + 1), -1, dtype=np.int64)
        sources = np.full((rows, length + 1), NOT_COPIED, dtype=np.int64)
        for row in range(rows):
            at = 0
            while at < length + 1:
                kind = min(spent, key=lambda name: spent[name] / mix[name])
                drawn = self._fitting(rng, kind, length + 1 - at)
                if drawn is None:
                    kind = CODE
                    drawn = self._code(rng, length + 1 - at)
                found, learned = drawn
                stop = at + len(found)
                tokens[row, at:stop] = found
                copied = self._sources(kind, found, learned)
                sources[row, at:stop] = np.where(copied == NOT_COPIED, NOT_COPIED, copied + at)
                kinds[row, at:stop] = np.where(learned, self.kind_names.index(kind), -1)
                if kind in spent:
                    spent[kind] += len(found)
                at = stop
        return Batch(tokens, kinds, sources)

    def _fitting(
        self, rng: np.random.Generator, kind: str, room: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """An example of `kind` that fits into `room` tokens, or None after a few draws."""
        if kind == CODE:
            return self._code(rng, room)
        if kind == REPEATS:
            tokens, learned = self._repeated(rng, room)
            return tokens[:room], learned[:room]
        for _ in range(_ATTEMPTS_TO_FIT):
            source = self._shards[kind]
            tokens, learned = source.example(int(rng.integers(len(source))))
            if len(tokens) <= room:
                return tokens, learned
        return None

    @staticmethod
    def _sources(kind: str, tokens: np.ndarray, learned: np.ndarray) -> np.ndarray:
        """Where each token of an example is copied from, counted from the example's start."""
        if kind == REPEATS:
            return repeats.sources_of(tokens, learned)
        if kind in COPYING_KINDS:
            return sources_of(tokens, learned)
        return np.full(len(tokens), NOT_COPIED)

    def _code(self, rng: np.random.Generator, room: int) -> tuple[np.ndarray, np.ndarray]:
        """A file from its beginning or from anywhere, cut to `room`, after an end of text."""
        source = self._shards[CODE]
        tokens, _ = source.example(int(rng.integers(len(source))))
        start = 0 if rng.random() < 0.3 else int(rng.integers(len(tokens)))
        piece = tokens[start : start + min(room, 512) - 1]
        found = np.concatenate(([self._end], piece))
        learned = np.ones(len(found), dtype=np.bool_)
        learned[0] = start == 0
        return found, learned

    def _repeated(self, rng: np.random.Generator, room: int) -> tuple[np.ndarray, np.ndarray]:
        if rng.random() < _RANDOM_STRETCHES:
            stretch = repeats.random_stretch(rng, self._vocabulary)
        else:
            limit = max(9, min(_LONGEST_STRETCH, room // 2))
            stretch = repeats.code_stretch(rng, self._shards[CODE].tokens, limit)
        return repeats.repeat(rng, stretch)
