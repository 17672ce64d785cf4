"""Rows of tokens for training, drawn from shards in given proportions.

A row holds whole examples, which do not see each other; what is left at its end is filled with a
piece of code. The draw depends on the seed and the step alone, so a resumed run sees what an
unbroken one would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from models.training import fill_in, repeats
from models.training.copies import LINE, NOWHERE, TARGETS, Alignment, align, line_begins, runs
from models.training.examples import Shard
from models.training.substitution import Substitution

REPEATS = "repeats"
CODE = "code"
FILL_IN = "fim"
QUESTIONS = "questions"
EDITS, LONG_EDITS = "edits", "long_edits"
SUBSTITUTED_KINDS = (EDITS, LONG_EDITS)
"""Kinds in which words are exchanged and requests are learned, as real code."""
COPYING_KINDS = (*SUBSTITUTED_KINDS, "short_edits", "refusals", "chats")
"""Kinds whose answers are aligned with what they copy."""
COPIED_WEIGHT, TURN_WEIGHT = 3.0, 9.0
"""How much a token of an edit counts that copies, and one at which the edit is decided. All must be
right, and what little is lost on each would drown in the losses of code that nobody can guess."""
ANSWER_WEIGHT = 3.0
"""How much a token counts that fills a hole, or stands in an answer that copies no code."""
OPENING, OPENING_WEIGHT = 4, 12.0
"""The first tokens of an answer that copies no code decide which one it is, and count for most."""
REQUEST_WEIGHT = 0.5
"""How much a token of a request counts: it is code like any other, at no further cost."""
_RANDOM_STRETCHES = 0.6
_SUBSTITUTED = 0.5
_LONGEST_STRETCH = 120
_SIMILAR = 16
"""Examples whose lengths differ by no more tokens than this are of one length."""
_LEAST_ROOM = 48
"""Less room than this at the end of a row is filled with code."""
_PIECE, _UNBROKEN = 512, 0.4
"""Tokens of a piece of code at most, and the share of those that may fill the row instead."""
_GAP, _WIDEST_GAP = 0.5, 800
"""How often an answer is moved away from what it copies, and by how many positions at most. So a
row of 512 tokens teaches copying over the distances of one of 2,048, for less work (Zhu et al.
2023, "PoSE", did so to make contexts longer)."""
_BARE = 0.6
"""The share of rows beginning with code that begin without an end of text, as a prompt does. All
attention with nothing to look at goes to the first token, and without such rows code that follows
no mark is predicted worse than code that follows one."""


@dataclass(frozen=True)
class Batch:
    """All are `[rows, length + 1]`, but targets `[targets, rows, length + 1]`.

    A kind is -1 where a token carries no loss; the weight tells how much a loss counts. Targets
    are those of an `Alignment`, counted from the row's start, for the model's `guided_heads`. The
    positions, for the rotary embedding, leave gaps in front of answers. `begins` tells where in the
    row the example of a token begins; nothing before that can be seen.
    """

    tokens: np.ndarray
    positions: np.ndarray
    begins: np.ndarray
    kinds: np.ndarray
    weights: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True)
class Drawn:
    """One example for a row: its tokens, which are learned, and whether words were exchanged."""

    kind: str
    tokens: np.ndarray
    learned: np.ndarray
    exchanged: bool = False

    def alignment(self, fence: int) -> Alignment:
        """What each token copies, counted from the example's start; `fence` begins code."""
        if self.kind == REPEATS:
            return repeats.align(self.tokens, self.learned)
        if self.kind in COPYING_KINDS:
            return align(self.tokens, self.learned, fence=fence)
        if self.kind == FILL_IN:
            return fill_in.align(self.learned)
        return Alignment.nowhere(len(self.tokens))


class Batches:
    """Draws batches.

    Args:
        shards: the examples of each kind; there must be `code`.
        vocabulary: ids that random stretches are made of.
        words: ids that may stand for each other in edits.
        positions: how many there are for a row, its gaps included.
        end: the id before a piece of code.
        fence: the id that code begins with in an answer.
        breaks: ids of line breaks, the indentation after them included.
        seed: what, with the step, decides everything that is drawn.
    """

    def __init__(
        self,
        shards: Mapping[str, Shard],
        *,
        vocabulary: np.ndarray,
        words: np.ndarray,
        positions: int,
        end: int,
        fence: int,
        breaks: np.ndarray,
        seed: int,
    ) -> None:
        self.kind_names = (REPEATS, *sorted(shards))
        self._shards = shards
        self._by_length = {
            kind: (lengths[order], order)
            for kind, lengths in ((kind, np.diff(one.starts)) for kind, one in shards.items())
            for order in (np.argsort(lengths, kind="stable"),)
        }
        self._typical = {kind: len(one.tokens) / len(one) for kind, one in shards.items()}
        self._vocabulary = vocabulary
        self._substitution = Substitution(words, shards[CODE].tokens)
        self._positions, self._end, self._fence, self._breaks = positions, end, fence, breaks
        self._seed = seed

    def draw(self, step: int, *, rows: int, length: int, mix: Mapping[str, float]) -> Batch:
        """The batch of a step; `mix` gives each kind's share of the tokens."""
        rng = np.random.default_rng((self._seed, step))
        spent = {
            kind: rng.random() * min(self._typical.get(kind, _LONGEST_STRETCH), length)
            for kind, share in mix.items()
            if share > 0
        }
        shape = (rows, length + 1)
        tokens, kinds = np.full(shape, self._end), np.full(shape, -1)
        weights = np.ones(shape, np.float32)
        targets = np.full((len(TARGETS), *shape), NOWHERE, np.int16)
        gaps, begins = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for row in range(rows):
            at = 0
            while at < length + 1:
                kind = min(spent, key=lambda name: spent[name] / mix[name])
                drawn = self._fitting(rng, kind, length + 1 - at)
                if drawn is None:
                    drawn = self._code(rng, length + 1 - at)
                if drawn.kind == CODE and not at and rng.random() < _BARE:
                    drawn = Drawn(CODE, drawn.tokens[1:], drawn.learned[1:])
                part = slice(at, at + len(drawn.tokens))
                tokens[row, part], begins[row, part] = drawn.tokens, at
                alignment = drawn.alignment(self._fence)
                kinds[row, part], weights[row, part] = self._counted(drawn, alignment)
                kinds[row, at] = -1  # nothing before it tells what an example begins with
                left = self._positions - length - int(gaps[row].sum())
                gaps[row, part] = self._gaps(rng, drawn, left)
                for index, target in enumerate(alignment.targets):
                    targets[index, row, part] = np.where(target == NOWHERE, NOWHERE, target + at)
                if drawn.kind in spent:
                    spent[drawn.kind] += len(drawn.tokens)
                at = part.stop
        lines = line_begins(tokens, self._breaks)
        targets[LINE, :, 1:] = np.maximum(lines[:, 1:], begins[:, :-1])
        positions = np.arange(length + 1) + gaps.cumsum(axis=1)
        return Batch(tokens, positions, begins, kinds, weights, targets)

    def _gaps(self, rng: np.random.Generator, drawn: Drawn, left: int) -> np.ndarray:
        """How many positions lie free in front of each token of an example, `left` at most."""
        gaps = np.zeros(len(drawn.tokens), np.int64)
        if drawn.kind in COPYING_KINDS:
            for begin, _ in runs(drawn.learned):
                if rng.random() < _GAP:
                    gaps[begin] = rng.integers(max(0, min(_WIDEST_GAP, left - gaps.sum())) + 1)
        return gaps

    def _counted(self, drawn: Drawn, alignment: Alignment) -> tuple[np.ndarray, np.ndarray]:
        """The kind and the weight of each token of an example."""
        kinds = np.where(drawn.learned, self.kind_names.index(drawn.kind), -1)
        weights = np.ones(len(kinds), np.float32)
        if drawn.kind == FILL_IN:
            weights[fill_in.middle(drawn.learned)] = ANSWER_WEIGHT
            weights[fill_in.borders(drawn.learned)] = TURN_WEIGHT
            after = fill_in.suffix(drawn.learned)
            kinds[after], weights[after] = self.kind_names.index(CODE), REQUEST_WEIGHT
        if drawn.kind in (QUESTIONS, *COPYING_KINDS):
            weights[drawn.learned] = ANSWER_WEIGHT
            for begin, end in runs(drawn.learned):
                weights[begin : min(begin + OPENING, end)] = OPENING_WEIGHT
                if (alignment.place[begin:end] != NOWHERE).any():
                    turns = alignment.turns[begin:end]
                    weights[begin:end] = np.where(turns, TURN_WEIGHT, COPIED_WEIGHT)
        if drawn.kind in SUBSTITUTED_KINDS and not drawn.exchanged:
            kinds[~drawn.learned] = self.kind_names.index(CODE)
            weights[~drawn.learned] = REQUEST_WEIGHT
        return kinds, weights

    def _fitting(self, rng: np.random.Generator, kind: str, room: int) -> Drawn | None:
        """An example of `kind` that fits into `room` tokens, or None where there is none."""
        if kind == CODE:
            return self._code(rng, room)
        if kind == REPEATS:
            tokens, learned = self._repeated(rng, room)
            return Drawn(kind, tokens[:room], learned[:room])
        lengths, order = self._by_length[kind]
        fitting = lengths[: np.searchsorted(lengths, room, side="right")]
        if room < _LEAST_ROOM or not len(fitting):
            return self._fitting(rng, EDITS, room) if kind == LONG_EDITS else None
        even = kind == LONG_EDITS
        picked = _of_any_length(rng, fitting) if even else int(rng.integers(len(fitting)))
        tokens, learned = self._shards[kind].example(int(order[picked]))
        exchanged = kind in SUBSTITUTED_KINDS and rng.random() < _SUBSTITUTED
        if exchanged:
            tokens = self._substitution.apply(rng, tokens)
        return Drawn(kind, tokens, learned, exchanged)

    def _code(self, rng: np.random.Generator, room: int) -> Drawn:
        """A file from its beginning or from anywhere, cut to `room`, after an end of text; another
        one follows where the file ends."""
        source = self._shards[CODE]
        tokens, _ = source.example(int(rng.integers(len(source))))
        start = 0 if rng.random() < 0.3 else int(rng.integers(len(tokens)))
        longest = room if rng.random() < _UNBROKEN else _PIECE
        piece = np.append(tokens, self._end)[start : start + min(room, longest) - 1]
        found = np.concatenate(([self._end], piece))
        return Drawn(CODE, found, np.ones(len(found), dtype=np.bool_))

    def _repeated(self, rng: np.random.Generator, room: int) -> tuple[np.ndarray, np.ndarray]:
        if rng.random() < _RANDOM_STRETCHES:
            stretch = repeats.random_stretch(rng, self._vocabulary)
        else:
            limit = max(9, min(_LONGEST_STRETCH, room // 2))
            stretch = repeats.code_stretch(rng, self._shards[CODE].tokens, limit)
        return repeats.repeat(rng, stretch)


def _of_any_length(rng: np.random.Generator, lengths: np.ndarray) -> int:
    """An index into the sorted `lengths`, drawn so that long ones come as often as short ones.

    Most long edits are not much longer than the shortest of them, and what is learned from those
    does not reach the longest.
    """
    wanted = rng.uniform(lengths[0], lengths[-1])
    low, high = np.searchsorted(lengths, (wanted - _SIMILAR, wanted + _SIMILAR))
    return int(rng.integers(min(low, len(lengths) - 1), max(high, low + 1)))
