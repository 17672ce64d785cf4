"""FillFormat: how each family of models is asked to fill a gap, by its own special tokens.

Two layouts are in use. Prefix-suffix-middle ends with the token that opens the middle;
suffix-prefix-middle ends with the prefix, so that typing only appends to the prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class FillFormat:
    """The special tokens of a family, and the layout it is asked in.

    Attributes:
        prefix, suffix: the tokens that open the text before the gap and the text after it.
        middle: the token that opens what is to be filled in; None where nothing does, and the
            answer goes on from the prefix.
        suffix_first: whether the layout is suffix-prefix-middle.
        repository: opens the name of a repository.
        file: opens a file's name and, on the next line, its text.
        name_inside: whether the name of the file with the gap goes behind the prefix token, and
            not before it.
        marker: one more token that tells the family from others with the same ones.
        enders: further special tokens that end an answer.
    """

    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    repository: str | None = None
    file: str | None = None
    name_inside: bool = False
    marker: str | None = None
    enders: tuple[str, ...] = ()


FILL_FORMATS: Final = (
    # CodeGemma
    FillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        file="<|file_separator|>",
        marker="<|file_separator|>",
    ),
    # Granite from version 4 on
    FillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository="<|reponame|>",
        file="<|filename|>",
        marker="<|filename|>",
        enders=("<|fim_pad|>", "<|end_of_text|>"),
    ),
    # Qwen2.5-Coder and its successors, ember, and others that took over these tokens
    FillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        repository="<|repo_name|>",
        file="<|file_sep|>",
        enders=("<|fim_pad|>", "<|endoftext|>"),
    ),
    # StarCoder2
    FillFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        repository="<repo_name>",
        file="<file_sep>",
        name_inside=True,
        marker="<file_sep>",
        enders=("<fim_pad>", "<|endoftext|>"),
    ),
    # Granite Code, StarCoder
    FillFormat(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        repository="<reponame>",
        file="<filename>",
        name_inside=True,
        enders=("<fim_pad>", "<|endoftext|>"),
    ),
    # DeepSeek-Coder: begin, prefix, hole, suffix, end
    FillFormat(
        "<｜fim▁begin｜>",  # noqa: RUF001
        "<｜fim▁hole｜>",  # noqa: RUF001
        "<｜fim▁end｜>",  # noqa: RUF001
        enders=("<|EOT|>",),
    ),
    # CodeLlama
    FillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", enders=("▁<EOT>",)),
    # Codestral
    FillFormat("[PREFIX]", "[SUFFIX]", None, suffix_first=True),
)


def find_format(token_id: Callable[[str], int | None]) -> FillFormat | None:
    """The format whose tokens a tokenizer has; None for a model that cannot fill gaps."""
    for format_ in FILL_FORMATS:
        needed = (format_.prefix, format_.suffix, format_.middle, format_.marker)
        if all(token is None or token_id(token) is not None for token in needed):
            return format_
    return None
