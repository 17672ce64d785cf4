"""Models that also see: their text part loads, with its sizes from `text_config`, and answers.

Each is tiny and random, in the form in which its checkpoints are published, with a vision tower.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

import akunu_py
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.options import Options
from tests.tiny_model import VOCABULARY, write_tokenizer

CONTEXT: Final = 640
_LAYERS: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
}  # fmt: skip
_GEMMA: Final = _LAYERS | {
    "num_hidden_layers": 6,
    "sliding_window": 16,
    "query_pre_attn_scalar": 32,
}
TEXT_PARTS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_vl": {"text_config": _LAYERS | {"model_type": "qwen3_vl_text",
                                           "tie_word_embeddings": True}},
    "gemma3": {"text_config": _GEMMA | {"model_type": "gemma3_text"}, "vocab_size": VOCABULARY},
    "gemma4": {"text_config": _GEMMA | {
        "model_type": "gemma4_text", "global_head_dim": 32, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCABULARY,
        "sliding_window_pattern": 3,
    }, "vocab_size": VOCABULARY},
    "kimi_vl": {"text_config": _LAYERS | {
        "model_type": "deepseek_v3", "moe_intermediate_size": 32, "n_shared_experts": 1,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "kv_lora_rank": 16, "q_lora_rank": None,
        "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 32,
        "first_k_dense_replace": 1, "num_key_value_heads": 2,
    }},
    "mistral3": {"text_config": _LAYERS | {"model_type": "mistral"}},
    "llama4": {"text_config": _LAYERS | {
        "model_type": "llama4_text", "num_hidden_layers": 4, "attention_bias": False,
        "attention_chunk_size": 32, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 128,
        "num_experts_per_tok": 1, "num_local_experts": 2, "rope_scaling": None,
        "use_qk_norm": True,
    }},
}  # fmt: skip


def write_model(folder: Path, kind: str) -> Path:
    config = {"model_type": kind, "vision_config": {"hidden_size": 8}} | TEXT_PARTS[kind]
    module = import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(2)
    network = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(config))))
    weights = {name: value * 3.0 for name, value in tree_flatten(network.parameters())}
    tower = "vision_model" if kind == "llama4" else "vision_tower"
    weights[f"{tower}.patch.weight"] = mx.zeros((8, 8))
    folder.mkdir()
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", TEXT_PARTS)
def test_the_text_part_answers_as_in_mlx_lm(tmp_path: Path, kind: str) -> None:
    folder = write_model(tmp_path / kind, kind)
    engine = akunu_py.load(str(folder))
    model = engine.model
    assert (model.vocabulary_size, model.context_length) == (VOCABULARY, CONTEXT)
    logits = model.forward(mx.array([1, 2]), model.make_cache(4))
    assert logits.shape == (2, VOCABULARY)

    prompt = engine.tokenizer.encode("one two three one two three " * 3)
    own = engine.generate(prompt, Options(24, num_draft_tokens=4)).token_ids
    reference = load_model(folder)[0]
    reference.set_dtype(mx.float32)
    theirs = [int(token) for token, _ in generate_step(mx.array(prompt), reference, max_tokens=24)]
    assert len(own) > 4
    assert own == theirs[: len(own)]


def test_what_a_configuration_leaves_out_is_what_mlx_lm_assumes(tmp_path: Path) -> None:
    """Published configurations of Gemma 3 name neither."""
    folder = write_model(tmp_path / "gemma3", "gemma3")
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["vocab_size"], config["text_config"]["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    model = load_target(str(folder), find_backend())
    assert (model.vocabulary_size, model.context_length) == (VOCABULARY, 32768)
