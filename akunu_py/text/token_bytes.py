"""The bytes of vocabulary entries, and how few tokens a text can have.

Decoding a single id does not give its bytes: part of a character becomes a replacement sign, and
some decoders drop a leading space. The spelling of the entry has both.
"""

from collections.abc import Iterable
from math import floor
from typing import Any, Final

import numpy as np

_SPACE: Final = "▁"
_BYTES: Final = 256
_ROUNDING: Final = 1e-6


class TokenBytes:
    """The bytes of the ids of a Hugging Face tokenizer, or of mlx-lm's wrapper around one."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self._added = frozenset(wrapped.added_tokens_decoder)
        self._alphabet = _byte_alphabet(wrapped)

    def of(self, token: int) -> bytes:
        """The bytes of one id; empty for an id that the tokenizer does not have."""
        spelling: str | None = self._wrapped.convert_ids_to_tokens(token)
        if spelling is None:
            return b""
        if token in self._added:
            return spelling.encode()
        if self._alphabet is not None:
            return bytes(self._alphabet[sign] for sign in spelling)
        if len(spelling) == len("<0x00>") and spelling.startswith("<0x"):
            return bytes.fromhex(spelling[3:-1])
        return spelling.replace(_SPACE, " ").encode()


class PieceLengths:
    """A lower bound on the tokens of a text: encoding megabytes takes seconds and cannot be
    interrupted, counting their bytes takes milliseconds.

    Assumes that every byte of a text belongs to a token that spells it, as in byte-level
    vocabularies and in those that fall back to bytes; `pieces` are the bytes of all entries.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        longest = [0] * _BYTES
        for piece in pieces:
            for byte in set(piece):
                longest[byte] = max(longest[byte], len(piece))
        self._shares = np.array([1 / length if length else 0.0 for length in longest])

    def least_tokens(self, text: str) -> int:
        """The bound for a text. Each byte counts as 1 / the length of the longest entry that has
        such a byte, so the bytes of one token add up to 1 at most."""
        octets = np.frombuffer(text.encode(errors="replace"), np.uint8)
        counts = np.bincount(octets, minlength=_BYTES)
        return floor(float(counts @ self._shares) + _ROUNDING)


def _byte_alphabet(wrapped: Any) -> dict[str, int] | None:
    """GPT-2's signs for bytes, if each sign of an entry is a byte, as in many tokenizers since."""
    rust = getattr(wrapped, "backend_tokenizer", None)
    decoder = None if rust is None else rust.decoder
    if decoder is None or b'"ByteLevel"' not in decoder.__getstate__():
        return None
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415  (slow)

    return {sign: byte for byte, sign in bytes_to_unicode().items()}
