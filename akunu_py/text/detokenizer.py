"""Detokenizer: one answer's ids to text, as it arrives and without losing a character.

mlx-lm's own streaming detokenizers drop an answer's first space, which a completion needs; this
one reads on from the prompt's last tokens instead.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tokenizers.decoders import DecodeStream

_CONTEXT: Final = 8
"""Tokens of the prompt that decide how the answer's first one is spelled."""


class Detokenizer:
    """Releases text as soon as its characters are whole.

    Args:
        tokenizer: the Rust tokenizer under a Hugging Face one.
        prompt: the ids that the answer goes on from.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._recent = list(prompt[-_CONTEXT:])
        self._held: list[int] = []
        self._stream = self._new_stream()

    def add(self, token: int) -> str:
        """Takes the next id and returns the text that became readable."""
        self._held.append(token)
        try:
            text: str | None = self._stream.step(self._tokenizer, token)
        except Exception:  # the stream gives up where an id changes the text before it
            text = self._tokenizer.decode(self._held, skip_special_tokens=False)
            self._settle()
            self._stream = self._new_stream()
            return text or ""
        if text is None:
            return ""
        self._settle()
        return text

    def finish(self) -> str:
        """The text of what was held back for the rest of a character that never came."""
        text: str = self._tokenizer.decode(self._held, skip_special_tokens=False)
        self._settle()
        return text

    def _new_stream(self) -> DecodeStream:
        return DecodeStream(ids=self._recent, skip_special_tokens=False)

    def _settle(self) -> None:
        self._recent = [*self._recent, *self._held][-_CONTEXT:]
        self._held.clear()


class WholeTextDetokenizer:
    """The same for tokenizers without a Rust part: decodes an answer's open line again and again.

    Args:
        decode: ids to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._line: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Takes the next id and returns the text that became readable."""
        self._line.append(token)
        text = self._decode(self._line)
        if text.endswith("\ufffd"):
            return ""
        return self._show(text)

    def finish(self) -> str:
        """The text of what was held back for the rest of a character that never came."""
        return self._show(self._decode(self._line)) if self._line else ""

    def _show(self, text: str) -> str:
        fresh = text[len(self._shown) :]
        self._shown = text
        if text.endswith("\n"):
            self._line, self._shown = [], ""
        return fresh
