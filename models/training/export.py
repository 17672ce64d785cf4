"""A checkpoint as a Hugging Face Llama folder in full precision.

Writes `full/` in the work folder: weights in float32, configuration and tokenizer, with nothing
in it that depends on the machine or the day.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from models.training import tokenizer as tokenizers
from models.training.examples import END_OF_TEXT
from models.training.model import HEAD_DIM, Shape

TOKENIZER_FILES = ("tokenizer.model", "tokenizer.json", "tokenizer_config.json")


def llama_config(shape: Shape, ends: Sequence[int]) -> dict[str, Any]:
    """The configuration as `transformers` and mlx-lm read it; an answer stops at any of `ends`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": list(ends),
        "torch_dtype": "float32",
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Indented JSON with a final line break."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def export(work: Path) -> Path:
    """Write and return the folder; the checkpoint and the tokenizer come from `work`."""
    saved = torch.load(work / "checkpoint.pt", weights_only=True, map_location="cpu")
    folder = work / "full"
    folder.mkdir(exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in sorted(saved["model"].items())}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    processor = tokenizers.load(work / "tokenizer")
    # No answer has a special token, so one that a confused model writes ends it, too.
    ends = [processor.piece_to_id(token) for token in tokenizers.SPECIAL_TOKENS]
    write_json(folder / "config.json", llama_config(Shape(**saved["shape"]), ends))
    write_json(
        folder / "generation_config.json",
        {"eos_token_id": ends, "pad_token_id": processor.piece_to_id(END_OF_TEXT)},
    )
    for name in TOKENIZER_FILES:
        shutil.copyfile(work / "tokenizer" / name, folder / name)
    return folder
