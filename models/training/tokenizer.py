"""The tokenizer: SentencePiece byte-pair pieces, assembled so that any text survives.

Training learns pieces from lines of plain ASCII; anything else is spelled in bytes, so no piece
is spent on rare characters. No piece crosses the border of a word or of a quote, so a name has
the same tokens wherever it stands, which is what copying and renaming go by. The special tokens
of Qwen2.5-Coder and pieces for line breaks and indentation are added by hand. Spaces stay
spaces instead of SentencePiece's usual U+2581, so that character, too, comes back as it went
in. `tokenizer.json` is the same model in the byte-level spelling of the `tokenizers` library.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as spm_model

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
LAYOUT_TOKENS = (
    "\t",
    *("\n" * breaks + " " * spaces for breaks in (1, 2) for spaces in (0, 4, 8, 12, 16, 20)),
    *(" " * spaces for spaces in (2, 3, 4, 6, 8, 12, 16, 20, 24, 32)),
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_WORDS = re.compile(r"[A-Za-z0-9_]+|[\"']+|[^A-Za-z0-9_\"']+")
_BORDER = "\u0002"
_SPACE = "\u00b7"
"""Stands for a space while pieces are learned: SentencePiece would not let one end a piece."""


def training_lines(texts: Iterable[str]) -> Iterable[str]:
    """Lines without their indentation, which has pieces of its own, with marks at every border."""
    for text in texts:
        for line in text.split("\n"):
            stripped = " ".join(line.split())
            if stripped and stripped.isascii():
                yield _BORDER.join(_WORDS.findall(stripped)).replace(" ", _SPACE)


def train(texts: Iterable[str], *, vocab_size: int) -> spm_model.ModelProto:
    """Learn a model of exactly `vocab_size` pieces, all kinds together."""
    written = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(training_lines(texts)),
        model_writer=written,
        model_type="bpe",
        vocab_size=vocab_size - len(SPECIAL_TOKENS) - len(LAYOUT_TOKENS),
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        character_coverage=1.0,
        split_by_whitespace=False,
        split_by_unicode_script=False,
        pretokenization_delimiter=_BORDER,
        required_chars="".join(map(chr, range(33, 127))) + _SPACE,
        input_sentence_size=600_000,
        max_sentence_length=800,
        shuffle_input_sentence=True,
        num_threads=2,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        minloglevel=2,
    )
    learned = spm_model.ModelProto.FromString(written.getvalue())
    return _assemble(learned)


def _assemble(learned: spm_model.ModelProto) -> spm_model.ModelProto:
    """Spaces instead of what stood for them, and the special and layout pieces at the end."""
    model = spm_model.ModelProto()
    model.CopyFrom(learned)
    for piece in model.pieces:
        piece.piece = piece.piece.replace(_SPACE, " ")
    model.normalizer_spec.escape_whitespaces = False
    for text in (*LAYOUT_TOKENS, *SPECIAL_TOKENS):
        piece = model.pieces.add()
        piece.piece, piece.score = text, 0.0
        piece.type = spm_model.ModelProto.SentencePiece.USER_DEFINED
    model.trainer_spec.vocab_size = len(model.pieces)
    return model


def byte_characters() -> dict[int, str]:
    """The character that stands for each byte in a byte-level vocabulary (GPT-2's scheme)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + rank) for rank, byte in enumerate(others)}


def _spellings(model: spm_model.ModelProto) -> list[str]:
    """Every piece as a byte-level vocabulary writes it; those never used keep their names."""
    kinds = spm_model.ModelProto.SentencePiece
    table = byte_characters()
    spelled = []
    for piece in model.pieces:
        if piece.type == kinds.NORMAL:
            spelled.append("".join(table[byte] for byte in piece.piece.encode()))
        elif piece.type == kinds.BYTE and not 0x20 <= int(piece.piece[1:-1], 16) < 0x7F:
            spelled.append(table[int(piece.piece[1:-1], 16)])
        else:
            spelled.append(piece.piece)
    return spelled


def _merges(rank: dict[str, float]) -> list[list[str]]:
    """Every split of every learned piece into two pieces, in the order they were learned."""
    merges = []
    for text in sorted(rank, key=rank.__getitem__):
        halves = [(text[:at], text[at:]) for at in range(1, len(text))]
        known = [pair for pair in halves if pair[0] in rank and pair[1] in rank]
        merges += [list(pair) for pair in sorted(known, key=lambda p: (rank[p[0]], rank[p[1]]))]
    return merges


def tokenizer_json(model: spm_model.ModelProto) -> dict[str, Any]:
    """The same tokenizer as the `tokenizers` library stores it.

    The decoder is wrapped in a sequence because mlx-lm's streaming detokenizer for a bare
    byte-level decoder drops a leading space; for any other it decodes the line so far.
    """
    kinds = spm_model.ModelProto.SentencePiece
    spelled = _spellings(model)
    both = list(zip(spelled, model.pieces, strict=True))
    added = [
        {
            "id": index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": text in SPECIAL_TOKENS,
        }
        for index, (text, piece) in enumerate(both)
        if piece.type == kinds.USER_DEFINED
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [byte_level, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(spelled)},
            "merges": _merges(
                {text: -piece.score for text, piece in both if piece.type == kinds.NORMAL}
            ),
        },
    }


def write(model: spm_model.ModelProto, folder: Path) -> None:
    """`tokenizer.model`, `tokenizer.json` and `tokenizer_config.json` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (
        ("tokenizer.json", tokenizer_json(model)),
        ("tokenizer_config.json", config),
    ):
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def load(folder: Path) -> spm.SentencePieceProcessor:
    """The SentencePiece processor of a folder made by `write`."""
    return spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
