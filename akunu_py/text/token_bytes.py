"""TokenBytes: what each vocabulary entry stands for, as bytes.

Decoding an id on its own cannot tell: a piece of a character becomes a replacement sign, and some
decoders take a leading space off. The entry's spelling has both.
"""

from functools import cache
from typing import Any, Final

_SPACE: Final = "▁"
_PRINTABLE: Final = (range(0x21, 0x7F), range(0xA1, 0xAD), range(0xAE, 0x100))


class TokenBytes:
    """Spells one tokenizer's ids.

    Args:
        wrapped: a Hugging Face tokenizer, or mlx-lm's wrapper around one.
    """

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped
        self._added = frozenset(wrapped.added_tokens_decoder)
        self._alphabet = _byte_alphabet() if _spells_bytes(wrapped) else None

    def of(self, token: int) -> bytes:
        """The bytes of one id; none for an id that the tokenizer does not have."""
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


def _spells_bytes(wrapped: Any) -> bool:
    """Whether each sign of an entry is a byte, as in GPT-2's tokenizer and its followers."""
    rust = getattr(wrapped, "backend_tokenizer", None)
    decoder = None if rust is None else rust.decoder
    return decoder is not None and b'"ByteLevel"' in decoder.__getstate__()


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's signs for bytes: printable ones are themselves, the others follow Latin-1."""
    printable = [byte for stretch in _PRINTABLE for byte in stretch]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }
