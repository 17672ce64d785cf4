"""The text that a character-level model learns from, and its split.

It is read from a file; by default it is Python's language reference, which is part of every
installation.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from akunu_py.errors import InvalidRequestError

MIN_CHARACTERS: Final = 10_000
TRAINING_SHARE: Final = 0.9


@dataclass(frozen=True)
class CharText:
    """A text whose tokens are its characters."""

    name: str
    content: str

    @cached_property
    def alphabet(self) -> list[str]:
        """Every character of the text, in order; a token's id is its index here."""
        return sorted(set(self.content))

    @property
    def training(self) -> str:
        return self.content[: self._split]

    @property
    def validation(self) -> str:
        """The rest; prompts are drawn from it."""
        return self.content[self._split :]

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.content.encode()).hexdigest()

    @property
    def _split(self) -> int:
        return int(TRAINING_SHARE * len(self.content))

    def encode(self, part: str) -> list[int]:
        ids = {character: index for index, character in enumerate(self.alphabet)}
        return [ids[character] for character in part]


def read_char_text(path: Path | None) -> CharText:
    """Reads a text; without a path, takes the one that comes with Python.

    Raises:
        InvalidRequestError: if the file cannot be read, is not text, or is too short.
    """
    if path is None:
        return CharText("Python's language reference", _language_reference())
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{path} is not text in UTF-8.") from error
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) < MIN_CHARACTERS:
        raise InvalidRequestError(
            f"{path} has {len(content):,} characters, and a model needs at least "
            f"{MIN_CHARACTERS:,} to learn from; name a longer text."
        )
    return CharText(path.name, content)


def _language_reference() -> str:
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415  (large, and not needed with --text)
    except ImportError as error:
        raise InvalidRequestError(
            "This Python has no language reference installed; name a text with --text FILE."
        ) from error
    return "\n\n".join(topics[name] for name in sorted(topics))
