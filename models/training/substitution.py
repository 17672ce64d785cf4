"""Substitution: an example with some of its words exchanged for others, everywhere alike.

To copy a token takes knowing it, and half of all pieces are too rare in edits to be learned
there. An edit stays as right as it was when words are exchanged in its request and its answer
alike, and it then also asks to look at what stands there instead of guessing by habit.
"""

from __future__ import annotations

import keyword

import numpy as np
import sentencepiece as spm

from models.training.examples import Shard

SHARE_OF_WORDS = 0.4
KEPT = 300
"""The most frequent words of code, such as `self`, stay what they are."""
_USUAL, _COUNTED = 0.003, 10_000
"""A word of requests is kept if it stands in more than this share of them; about so many requests
are looked at."""


class Substitution:
    """Exchanges words.

    Args:
        words: ids of the pieces that may be exchanged and that may stand for others.
        tokens: code that tells how frequent each id is.
    """

    def __init__(self, words: np.ndarray, tokens: np.ndarray) -> None:
        counts = np.bincount(tokens, minlength=int(words.max()) + 1)
        by_frequency = words[np.argsort(-counts[words], kind="stable")]
        self._words = words
        self._rare = by_frequency[KEPT:]

    def apply(self, rng: np.random.Generator, tokens: np.ndarray) -> np.ndarray:
        """`tokens` with a share of its distinct rarer words replaced by words not in it."""
        present = np.unique(tokens)
        replaceable = np.intersect1d(present, self._rare, assume_unique=True)
        chosen = replaceable[rng.random(len(replaceable)) < SHARE_OF_WORDS]
        fresh = np.setdiff1d(self._words, present, assume_unique=True)
        table = np.arange(int(max(present.max(), self._words.max())) + 1)
        if len(chosen) <= len(fresh):
            table[chosen] = rng.choice(fresh, size=len(chosen), replace=False)
        exchanged: np.ndarray = table[tokens].astype(tokens.dtype)
        return exchanged


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


def word_pieces(processor: spm.SentencePieceProcessor) -> np.ndarray:
    """Ids of the pieces that are letters, digits and underscores only, and no keywords."""
    size = processor.get_piece_size()
    pieces = ((i, processor.id_to_piece(i)) for i in range(size) if not processor.is_byte(i))
    return np.array(
        [
            i
            for i, piece in pieces
            if piece.isascii() and piece.isidentifier() and not keyword.iskeyword(piece)
        ]
    )


def high_bytes(processor: spm.SentencePieceProcessor) -> np.ndarray:
    """Ids of the bytes outside ASCII. Text hardly has them, so unless they are exchanged for words,
    a model does not learn to tell one from another."""
    return np.array([processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(0x80, 0x100)])
