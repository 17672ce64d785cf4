"""Rows of tokens for training, drawn from shards in given proportions.

A row holds whole examples, which do not see each other; what is left at its end is filled with a
piece of code. The draw depends on the seed and the step alone, so a resumed run sees what an
unbroken one would.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import sentencepiece as spm

from models.training import fill_in
from models.training.copies import LINE, NOWHERE, TARGETS, Alignment, align, line_begins, runs
from models.training.examples import END_OF_TEXT, Shard

REPEATS, CODE, FILL_IN, QUESTIONS = "repeats", "code", "fim", "questions"
EDITS, LONG_EDITS = "edits", "long_edits"
SUBSTITUTED_KINDS = (EDITS, LONG_EDITS)
"""Kinds in which words are exchanged and requests are learned, as real code."""
COPYING_KINDS = (
    *SUBSTITUTED_KINDS,
    *("short_edits", "refusals", "chats", "hard_cases", "people"),
)
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
FENCE = "```python\n"
_RANDOM_STRETCHES, _LONGEST_STRETCH = 0.6, 120
_SUBSTITUTED, _SHARE_OF_WORDS = 0.5, 0.4
KEPT = 300  # of the most frequent words of code, such as `self`, stay what they are
_USUAL, _COUNTED = 0.003, 10_000
"""A word of requests is kept if it stands in more than this share of them; about so many requests
are looked at."""
_SIMILAR = 16  # examples whose lengths differ by no more tokens are of one length
_LEAST_ROOM = 48  # tokens; less at the end of a row is filled with code
_PIECE, _UNBROKEN = 512, 0.4  # tokens of a piece of code, but for a share that may fill the row
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
class Vocabulary:
    """What the ids of a tokenizer stand for: ids that `plain` stretches are made of, `words` that
    may stand for each other in edits, the `end` of a text, the `fence` that code begins with in an
    answer, and line `breaks`, the indentation after them included."""

    plain: np.ndarray
    words: np.ndarray
    end: int
    fence: int
    breaks: np.ndarray

    @classmethod
    def of(cls, processor: spm.SentencePieceProcessor, edits: Shard) -> Vocabulary:
        """Reads the pieces; words that many requests for `edits` have are not exchanged."""
        pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
        end, fence = processor.piece_to_id(END_OF_TEXT), processor.encode(FENCE)[0]
        spelled = [i for i, piece in enumerate(pieces) if not processor.is_byte(i)]
        words = [i for i in spelled if pieces[i].isascii() and pieces[i].isidentifier()]
        words = [i for i in words if not keyword.iskeyword(pieces[i])]
        # Text hardly has bytes outside ASCII, so unless they are exchanged for words, a model does
        # not learn to tell one from another.
        words += [processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(0x80, 0x100)]
        kept = request_words(edits, fence=fence, quote=processor.encode("`")[0])
        return cls(
            plain=np.array([i for i in spelled if 0 < i < end]),
            words=np.setdiff1d(words, kept),
            end=end,
            fence=fence,
            breaks=np.array([i for i, piece in enumerate(pieces) if piece.startswith("\n")]),
        )


def request_words(edits: Shard, *, fence: int, quote: int) -> np.ndarray:
    """Ids that many requests have in front of their code, outside quotes. They tell what is asked
    for, as "before" or "single" do, and must not be exchanged.

    `fence` is the id that code begins with, `quote` that of a backquote.
    """
    counts, seen = np.zeros(int(edits.tokens.max()) + 1, dtype=np.int64), 0
    for index in range(0, len(edits), max(1, len(edits) // _COUNTED)):
        tokens, learned = edits.example(index)
        begins = np.flatnonzero(tokens[: np.argmax(learned)] == fence)
        if len(begins):
            words = tokens[: begins[0]]
            counts[np.unique(words[np.cumsum(words == quote) % 2 == 0])] += 1
            seen += 1
    return np.flatnonzero(counts > _USUAL * seen)


class Substitution:
    """Exchanges some words of an example for others, everywhere alike.

    To copy a token takes knowing it, and half of all pieces are too rare in edits to be learned
    there. An edit stays as right as it was, and then also asks to look at what stands there instead
    of guessing by habit. `tokens` are code that tells how frequent each id is.
    """

    def __init__(self, words: np.ndarray, tokens: np.ndarray) -> None:
        counts = np.bincount(tokens, minlength=int(words.max()) + 1)
        self._words = words
        self._rare = words[np.argsort(-counts[words], kind="stable")][KEPT:]

    def apply(self, rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray:
        """`tokens` with a share of its distinct rarer words replaced by words not in it."""
        present = np.unique(tokens)
        replaceable = np.intersect1d(present, self._rare, assume_unique=True)
        chosen = replaceable[rng.random(len(replaceable)) < _SHARE_OF_WORDS]
        fresh = np.setdiff1d(self._words, present, assume_unique=True)
        table = np.arange(int(max(present.max(), self._words.max())) + 1)
        if len(chosen) <= len(fresh):
            table[chosen] = rng.choice(fresh, size=len(chosen), replace=False)
        exchanged: np.ndarray = table[tokens].astype(tokens.dtype)
        return exchanged


def repeated(rng: np.random.Generator, stretch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The stretch two to four times, and which tokens are learned: those that can be predicted.

    Attention heads that continue a repeated pattern form many times sooner on this than on code.
    """
    tokens = np.tile(stretch, int(rng.integers(2, 5)))
    learned = np.ones(len(tokens), dtype=np.bool_)
    learned[: len(stretch)] = False
    learned[:: len(stretch)] = False
    return tokens, learned


def align_repeated(learned: np.ndarray) -> Alignment:
    """Where each learned token of a repetition, which may be cut short, is copied from."""
    alignment = Alignment.nowhere(len(learned))
    positions = np.flatnonzero(learned)
    if len(positions):
        alignment.place[positions] = alignment.source[positions] = positions - (positions[0] - 1)
    return alignment


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
            return align_repeated(self.learned)
        if self.kind in COPYING_KINDS:
            return align(self.tokens, self.learned, fence=fence)
        if self.kind == FILL_IN:
            return fill_in.align(self.learned)
        return Alignment.nowhere(len(self.tokens))


class Batches:
    """Draws batches from the `shards` of each kind; there must be `code` and `edits`.

    A row has so many `positions`, its gaps included. The `seed` decides, with the step, everything
    that is drawn.
    """

    def __init__(
        self, shards: Mapping[str, Shard], vocabulary: Vocabulary, *, positions: int, seed: int
    ) -> None:
        self.kind_names = (REPEATS, *sorted(shards))
        self._shards, self._vocabulary = shards, vocabulary
        self._by_length = {}
        for kind, one in shards.items():
            lengths = np.diff(one.starts)
            order = np.argsort(lengths, kind="stable")
            self._by_length[kind] = (lengths[order], order)
        self._typical = {kind: len(one.tokens) / len(one) for kind, one in shards.items()}
        self._substitution = Substitution(vocabulary.words, shards[CODE].tokens)
        self._positions, self._seed = positions, seed

    def draw(self, step: int, *, rows: int, length: int, mix: Mapping[str, float]) -> Batch:
        """The batch of a step; `mix` gives each kind's share of the tokens."""
        rng = np.random.default_rng((self._seed, step))
        spent = {
            kind: rng.random() * min(self._typical.get(kind, _LONGEST_STRETCH), length)
            for kind in mix
        }
        shape = (rows, length + 1)
        tokens, kinds = np.full(shape, self._vocabulary.end), np.full(shape, -1)
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
                alignment = drawn.alignment(self._vocabulary.fence)
                kinds[row, part], weights[row, part] = self._counted(drawn, alignment)
                kinds[row, at] = -1  # nothing before it tells what an example begins with
                left = self._positions - length - int(gaps[row].sum())
                gaps[row, part] = self._gaps(rng, drawn, left)
                for index, target in enumerate(alignment.targets):
                    targets[index, row, part] = np.where(target == NOWHERE, NOWHERE, target + at)
                if drawn.kind in spent:
                    spent[drawn.kind] += len(drawn.tokens)
                at = part.stop
        lines = line_begins(tokens, self._vocabulary.breaks)
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
            tokens, learned = repeated(rng, self._stretch(rng, room))
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
        source, end = self._shards[CODE], self._vocabulary.end
        tokens, _ = source.example(int(rng.integers(len(source))))
        start = 0 if rng.random() < 0.3 else int(rng.integers(len(tokens)))
        longest = room if rng.random() < _UNBROKEN else _PIECE
        piece = np.append(tokens, end)[start : start + min(room, longest) - 1]
        found = np.concatenate(([end], piece))
        return Drawn(CODE, found, np.ones(len(found), dtype=np.bool_))

    def _stretch(self, rng: np.random.Generator, room: int) -> np.ndarray:
        """Tokens to repeat: any of the vocabulary, or a piece of code."""
        if rng.random() < _RANDOM_STRETCHES:
            size = int(rng.integers(4, 65))
            return rng.choice(self._vocabulary.plain, size=size).astype(np.uint16)
        tokens = self._shards[CODE].tokens
        length = int(rng.integers(8, max(9, min(_LONGEST_STRETCH, room // 2)) + 1))
        start = int(rng.integers(0, len(tokens) - length))
        return tokens[start : start + length]


def _of_any_length(rng: np.random.Generator, lengths: np.ndarray) -> int:
    """An index into the sorted `lengths`, drawn so that long ones come as often as short ones.

    Most long edits are not much longer than the shortest of them, and what is learned from those
    does not reach the longest.
    """
    wanted = rng.uniform(lengths[0], lengths[-1])
    low, high = np.searchsorted(lengths, (wanted - _SIMILAR, wanted + _SIMILAR))
    return int(rng.integers(min(low, len(lengths) - 1), max(high, low + 1)))
