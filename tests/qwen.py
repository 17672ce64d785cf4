"""Tiny Qwen3 embedding models and rerankers, and their forward written out in NumPy."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np

from tests.model.heads import (
    EPS,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    SIZE,
    WIDE,
    Array,
    block,
    feed_forward,
    grouped_attention,
    rms,
)
from tests.tiny_model import SPECIAL_TOKENS, write_tiny_model

END: Final = 256
"""The id of `<|endoftext|>`, with which the tokenizer ends each text, as Qwen3-Embedding's does."""
POOL: Final = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}
"""The settings of Qwen3-Embedding."""


def write_qwen(folder: Path, *, ends: bool = True, **changes: Any) -> Path:
    """Writes a random model without modules."""
    write_tiny_model(
        folder, model_type="qwen3", hidden_size=SIZE, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, intermediate_size=WIDE,
        rope_theta=10000.0, rms_norm_eps=EPS, **changes,
    )  # fmt: skip
    if ends:
        file = folder / "tokenizer.json"
        mark = {"id": SPECIAL_TOKENS[0], "ids": [END], "tokens": [SPECIAL_TOKENS[0]]}
        single: Any = [{"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        single.append({"SpecialToken": {"id": SPECIAL_TOKENS[0], "type_id": 0}})
        processor = {"type": "TemplateProcessing", "single": single, "pair": pair}
        processor["special_tokens"] = {SPECIAL_TOKENS[0]: mark}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))
    return folder


def add_modules(folder: Path, pooling: dict[str, Any] | None, *names: str) -> Path:
    """Adds what sentence-transformers writes: the pooling, and modules after it."""
    modules = ["models.Transformer", *(["models.Pooling"] if pooling else []), *names]
    entries = []
    for index, name in enumerate(modules):
        path = f"{index}_{name.rpartition('.')[2]}" if index else ""
        entries.append({"idx": index, "name": str(index), "path": path,
                        "type": f"sentence_transformers.{name}"})  # fmt: skip
        (folder / path).mkdir(exist_ok=True)
    if pooling:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(entries))
    return folder


@cache
def weights_of(folder: Path) -> dict[str, Array]:
    found: Any = mx.load(str(folder / "model.safetensors"))
    return {name: np.array(weight, np.float64) for name, weight in found.items()}


def states(folder: Path, ids: Sequence[int]) -> Array:
    """The states after the last norm, `[tokens, SIZE]`."""
    weights = weights_of(folder)
    x = weights["model.embed_tokens.weight"][list(ids)]
    for layer in range(2):
        at = f"model.layers.{layer}."
        own = {name.removeprefix(at): one for name, one in weights.items() if name.startswith(at)}
        x = block(grouped_attention, feed_forward)(x, own)
    return rms(x, weights["model.norm.weight"])


def pooled(folder: Path, ids: Sequence[int], pooling: str) -> Array:
    found = states(folder, ids)
    vector: Array = {"lasttoken": found[-1], "mean": found.mean(0), "cls": found[0]}[pooling]
    return vector


def unit(vector: Array) -> Array:
    out: Array = vector / np.linalg.norm(vector)
    return out


def bytes_of(text: str) -> list[int]:
    """The ids of a text: the tokenizer has one for each byte, in the order of its signs."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # noqa: PLC0415  (slow)

    signs = bytes_to_unicode()
    ids = {sign: index for index, sign in enumerate(sorted(signs.values()))}
    return [ids[signs[byte]] for byte in text.encode()]
