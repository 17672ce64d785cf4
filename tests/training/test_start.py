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
