"""A finished model as the beginning of further training."""

from pathlib import Path

import mlx.core as mx
import numpy as np

from models.training.start import dense_weights, renew_heads

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


def test_heads_that_begin_anew_are_silent_and_leave_the_others_alone() -> None:
    before, weights = dense_weights(EMBER), dense_weights(EMBER)
    renew_heads(weights, 5, 1, head_dim=64)
    changed = {name for name in weights if not np.array_equal(weights[name], before[name])}
    attention = {name: f"model.layers.5.self_attn.{name}_proj.weight" for name in "qkvo"}
    assert changed == set(attention.values())
    assert (weights[attention["o"]][:, 128:] == 0).all()
    for name, old in (("q", 128), ("k", 64), ("v", 64)):
        weight, was = weights[attention[name]], before[attention[name]]
        assert np.array_equal(weight[:old], was[:old])
        assert not np.isclose(weight[old:], was[old:]).all()
        assert 0.019 < weight[old:].std() < 0.021
