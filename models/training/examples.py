"""An example: stretches of text, each either given or to be learned; and shards of them.

A shard is one `.npz` file of many examples of one kind as tokens, so that a training run does
no text work. A token that is not to be learned carries no loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece as spm

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (
    *(END_OF_TEXT, "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>"),
    *("<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
)
EMBER = Path(__file__).parents[1] / "ember"
"""The bundled model, whose tokenizer every model here has."""
Turns = list[tuple[str, str]]
"""Messages of a conversation: (role, content)."""


@dataclass(frozen=True)
class Segment:
    """A stretch of text; `learned` says whether the model must predict it."""

    text: str
    learned: bool = True


Example = tuple[Segment, ...]


def chat(turns: Turns) -> Example:
    """A ChatML conversation; only the assistant's words are learned."""
    segments = []
    for role, content in turns:
        segments.append(Segment(f"<|im_start|>{role}\n", learned=False))
        segments.append(Segment(f"{content}<|im_end|>", learned=role == "assistant"))
        segments.append(Segment("\n", learned=False))
    return tuple(segments)


@dataclass(frozen=True)
class Shard:
    """Examples one after the other: example `i` is `tokens[starts[i]:starts[i + 1]]`."""

    tokens: np.ndarray
    learned: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def example(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of an example, and which of them are learned."""
        begin, end = self.starts[index], self.starts[index + 1]
        return self.tokens[begin:end], self.learned[begin:end]

    def examples(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What `example` returns, of every one."""
        return map(self.example, range(len(self)))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, tokens=self.tokens, learned=self.learned, starts=self.starts)

    @classmethod
    def of(cls, examples: Iterable[tuple[np.ndarray, np.ndarray]]) -> Shard:
        """A shard of (tokens, learned) pairs; there must be at least one."""
        pairs = list(examples)
        if not pairs:
            raise ValueError("a shard needs at least one example")
        starts = np.cumsum([0, *(len(tokens) for tokens, _ in pairs)], dtype=np.int64)
        tokens, learned = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
        return cls(tokens, learned, starts)

    @classmethod
    def load(cls, path: Path) -> Shard:
        with np.load(path) as arrays:
            return cls(arrays["tokens"], arrays["learned"], arrays["starts"])


def load_tokenizer(folder: Path = EMBER) -> spm.SentencePieceProcessor:
    """The SentencePiece processor of a model's folder."""
    return spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def shard(examples: Iterable[Example], tokenizer: spm.SentencePieceProcessor) -> Shard:
    """Encode examples into one shard; segments are tokenized apart, as at inference."""

    def encoded(example: Example) -> tuple[np.ndarray, np.ndarray]:
        pieces = [tokenizer.encode(segment.text) for segment in example]
        tokens = np.array([token for piece in pieces for token in piece], dtype=np.uint16)
        flags = [segment.learned for segment in example]
        return tokens, np.repeat(np.array(flags, dtype=np.bool_), [len(one) for one in pieces])

    return Shard.of(map(encoded, examples))
