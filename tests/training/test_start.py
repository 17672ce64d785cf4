"""A finished model as the beginning of further training."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import llama

from models.training.start import (
    dense_weights,
    drop_layer,
    insert_layer,
    make_quieter,
    tell_bytes_apart,
    widen,
)

EMBER = Path(__file__).parents[2] / "models" / "ember"


def test_weights_of_a_finished_model_are_read_as_they_are_computed_with() -> None:
    stored = mx.load(str(EMBER / "model.safetensors"))
    assert isinstance(stored, dict)
    name = "model.layers.0.mlp.up_proj"
    weight, scales, biases = (
        mx.array(stored[f"{name}.{part}"]) for part in ("weight", "scales", "biases")
    )
    expected = mx.dequantize(weight, scales, biases, group_size=64, bits=8)
    assert np.allclose(dense_weights(EMBER)[f"{name}.weight"], np.array(expected))


def test_inserted_layers_change_nothing_at_first() -> None:
    weights = dense_weights(EMBER)
    config = json.loads((EMBER / "config.json").read_text(encoding="utf-8"))
    layers, prompt = config["num_hidden_layers"], mx.array([[5, 6, 7, 8]])
    expected = _logits(config, weights, prompt)
    for index in (2, layers + 1):
        insert_layer(weights, index)
    deeper = _logits({**config, "num_hidden_layers": layers + 2}, weights, prompt)
    assert np.allclose(deeper, expected, atol=1e-5)
    assert all(
        weights[f"model.layers.{i}.mlp.up_proj.weight"].std() > 0.01 for i in (2, layers + 1)
    )


def test_a_wider_model_computes_the_same_at_first_and_can_use_its_width() -> None:
    weights = dense_weights(EMBER)
    config = json.loads((EMBER / "config.json").read_text(encoding="utf-8"))
    prompt, keys = mx.array([[5, 6, 7, 8]]), config["num_key_value_heads"]
    expected = _logits(config, weights, prompt)
    hidden = config["hidden_size"] + 64 * keys
    widen(weights, hidden, 1280, keys)
    shape = {"hidden_size": hidden, "intermediate_size": 1280, "num_attention_heads": hidden // 64}
    assert np.allclose(_logits({**config, **shape}, weights, prompt), expected, atol=0.05)
    layer = "model.layers.0"
    heads = weights[f"{layer}.self_attn.q_proj.weight"].reshape(keys, -1, 64, hidden)
    assert heads[:, -1].std() > 0.01
    assert weights[f"{layer}.mlp.up_proj.weight"][-1].std() > 0.01
    assert not weights["model.embed_tokens.weight"][:, -1].any()


def test_a_dropped_layer_is_the_one_that_was_inserted() -> None:
    weights = dense_weights(EMBER)
    before = dict(weights)
    insert_layer(weights, 3)
    drop_layer(weights, 3)
    assert sorted(weights) == sorted(before)
    assert all(np.array_equal(weights[name], array) for name, array in before.items())


def test_quieter_layers_add_less_to_the_stream() -> None:
    weights = dense_weights(EMBER)
    before = dict(weights)
    make_quieter(weights, 16)
    layer = "model.layers.0"
    for first, second in (
        ("self_attn.v_proj", "self_attn.o_proj"),
        ("mlp.up_proj", "mlp.down_proj"),
    ):
        inner, outer = (f"{layer}.{name}.weight" for name in (first, second))
        factor = (
            before[inner].std()
            * before[outer].std()
            / (weights[inner].std() * weights[outer].std())
        )
        assert np.isclose(factor, 16, rtol=1e-4)
    same = [name for name in weights if np.array_equal(weights[name], before[name])]
    assert {name for name in weights if name.endswith(("norm.weight", "q_proj.weight"))} <= set(
        same
    )


def test_rows_that_were_alike_are_told_apart_and_others_stay() -> None:
    rows = np.random.default_rng(1).normal(size=(300, 16)).astype(np.float32)
    rows[:100] = 0.5
    before = rows.copy()
    tell_bytes_apart(rows, np.arange(100), np.arange(100, 300))
    assert np.array_equal(rows[100:], before[100:])
    assert np.isclose((rows[:100] - 0.5).std(), before[100:].std(), rtol=0.15)
    distances = np.linalg.norm(rows[:100, None] - rows[None, :100], axis=-1)
    assert distances[~np.eye(100, dtype=bool)].min() > 1


def _logits(config: dict[str, Any], weights: dict[str, np.ndarray], prompt: mx.array) -> np.ndarray:
    model = llama.Model(llama.ModelArgs.from_dict(config))
    model.load_weights([(name, mx.array(array)) for name, array in weights.items()])
    return np.array(model(prompt))
