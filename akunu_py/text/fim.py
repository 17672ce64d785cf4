"""Fill-in-the-middle prompts, in the layout that the model's own special tokens announce."""

from collections.abc import Sequence
from dataclasses import dataclass

from akunu_py.errors import InvalidRequestError
from akunu_py.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class FillFormat:
    """How one family of models is asked to fill a gap.

    Attributes:
        prefix, suffix, middle: the tokens that open each part; no middle token means that the
            text before the gap comes last and the answer simply goes on from it.
        enders: further special tokens that end an answer.
    """

    prefix: str
    suffix: str
    middle: str | None
    enders: tuple[str, ...] = ()


FILL_FORMATS = (
    # ember, Qwen2.5-Coder and CodeGemma
    FillFormat(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<|endoftext|>"),
    ),
    # StarCoder2 and Granite
    FillFormat(
        "<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>", "<|endoftext|>")
    ),
    # DeepSeek-Coder: begin, prefix, hole, suffix, end
    FillFormat("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<|EOT|>",)),  # noqa: RUF001
    # CodeLlama
    FillFormat("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    # Codestral: the suffix comes first, and nothing opens the middle
    FillFormat("[PREFIX]", "[SUFFIX]", None),
)


@dataclass(frozen=True)
class FillPrompt:
    """A prompt that asks for the text between a prefix and a suffix.

    Attributes:
        tokens: the prompt's ids.
        end_tokens: ids that end the answer, beside the model's usual ones.
    """

    tokens: list[int]
    end_tokens: frozenset[int]


def fill_prompt(tokenizer: Tokenizer, prefix: str, suffix: str) -> FillPrompt:
    """The prompt for what stands between `prefix` and `suffix`.

    Raises:
        InvalidRequestError: if the model was not trained to fill gaps.
    """
    for format_ in FILL_FORMATS:
        ids = [tokenizer.token_id(token) for token in (format_.prefix, format_.suffix)]
        middle = None if format_.middle is None else tokenizer.token_id(format_.middle)
        if None in ids or (format_.middle is not None and middle is None):
            continue
        opening = tokenizer.encode("")
        prefix_part = [ids[0], *tokenizer.encode_plain(prefix)]
        suffix_part = [ids[1], *tokenizer.encode_plain(suffix)]
        parts = (
            [*suffix_part, *prefix_part] if middle is None else [*prefix_part, *suffix_part, middle]
        )
        return FillPrompt([*opening, *_known(parts)], _end_tokens(tokenizer, format_))
    raise InvalidRequestError(
        "This model has no fill-in-the-middle tokens; leave the suffix out, "
        "or use a model trained to fill gaps, Qwen2.5-Coder say."
    )


def _end_tokens(tokenizer: Tokenizer, format_: FillFormat) -> frozenset[int]:
    names = [format_.prefix, format_.suffix, *format_.enders]
    return frozenset(_known([tokenizer.token_id(name) for name in names]))


def _known(ids: Sequence[int | None]) -> list[int]:
    return [token for token in ids if token is not None]
