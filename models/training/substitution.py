"""Substitution: an example with some of its words exchanged for others, everywhere alike.

To copy a token takes knowing it, and half of all pieces are too rare in edits to be learned
there. An edit stays as right as it was when words are exchanged in its request and its answer
alike, and it then also asks to look at what stands there instead of guessing by habit.
"""

from __future__ import annotations

import numpy as np
import sentencepiece as spm

SHARE_OF_WORDS = 0.4
KEPT = 300
"""The most frequent words, such as `self` and those of the requests, stay what they are."""


class Substitution:
    """Exchanges words; made of the pieces that are words and of the tokens of all examples.

    Args:
        words: ids of pieces that are words or parts of words.
        tokens: a corpus that tells how frequent each id is.
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


def word_pieces(processor: spm.SentencePieceProcessor) -> np.ndarray:
    """Ids of the pieces that are letters, digits and underscores only."""
    size = processor.get_piece_size()
    pieces = ((i, processor.id_to_piece(i)) for i in range(size) if not processor.is_byte(i))
    return np.array([i for i, piece in pieces if piece.isascii() and piece.isidentifier()])


def high_bytes(processor: spm.SentencePieceProcessor) -> np.ndarray:
    """Ids of the bytes outside ASCII. Text hardly has them, so unless they are exchanged for words,
    a model does not learn to tell one from another."""
    return np.array([processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(0x80, 0x100)])
