"""A model with an adapter predicts what it predicts in mlx-lm, with every layout of the weights."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from mlx_lm.utils import load_model

import akunu_py
from akunu_py.errors import ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model.cpu.attention import FusedAttention
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from tests.tiny_model import VOCABULARY

TOKENS = mx.array([7, 300, 12, 12, 99, 4])


def write_adapter(
    folder: Path, model: Path, *, kind: str = "lora", keys: list[str] | None = None
) -> Path:
    """Writes a random adapter for a model."""
    mx.random.seed(5)
    parameters: dict[str, Any] = {"rank": 4, "scale": 20.0, "dropout": 0.1}
    if keys is not None:
        parameters["keys"] = keys
    network, _ = load_model(model)
    if kind == "full":
        named = tree_flatten(network.parameters())
        weights = [(name, value * 1.1) for name, value in named if "q_proj" in name]
    else:
        network.freeze()
        linear_to_lora_layers(network, 2, parameters, use_dora=kind == "dora")
        weights = [
            (name, mx.random.normal(value.shape) * 0.1 if "lora" in name else value)
            for name, value in tree_flatten(network.trainable_parameters())
        ]
    folder.mkdir()
    config = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "adapters.safetensors"), dict(weights))
    return folder


def logits(model: TargetModel) -> mx.array:
    """Of a prefill, and of one more token: the CPU has other layers for single rows."""
    cache = model.make_cache(16)
    return mx.concatenate([model.forward(part, cache) for part in (TOKENS[:-1], TOKENS[-1:])])


def load(model: Path, weights: str, adapter: Path | None = None) -> TargetModel:
    path = None if adapter is None else str(adapter)
    return load_target(
        akunu_py.ModelOptions(str(model), weights=weights, adapter_path=path), find_backend()
    )


@pytest.fixture
def models(tiny_model_dir: Path, quantized_model_dir: Path) -> list[Path]:
    return [tiny_model_dir, quantized_model_dir]


KEYS = ["self_attn.q_proj", "mlp.down_proj", "model.embed_tokens"]


@pytest.mark.parametrize(
    ("kind", "keys"), [("lora", None), ("lora", KEYS), ("dora", None), ("full", None)]
)
@pytest.mark.parametrize("weights", ["quantized", "dense"])
def test_it_predicts_what_mlx_lm_predicts(
    tmp_path: Path, models: list[Path], kind: str, keys: list[str] | None, weights: str
) -> None:
    for folder in models[:1] if kind == "full" else models:
        adapter = write_adapter(tmp_path / folder.name, folder, kind=kind, keys=keys)
        reference = mlx_lm.load(str(folder), adapter_path=str(adapter))[0]
        own = logits(load(folder, weights, adapter))
        assert mx.allclose(own, reference(TOKENS[None])[0], rtol=1e-3, atol=2e-3)
        assert not mx.allclose(own, logits(load(folder, weights)), atol=0.1)


def test_dense_weights_take_it_in_and_keep_the_faster_layers(
    tmp_path: Path, tiny_model_dir: Path
) -> None:
    model = load(tiny_model_dir, "dense", write_adapter(tmp_path / "lora", tiny_model_dir))
    assert model.full_name == f"{tiny_model_dir.name} with lora"
    assert type(model.network.layers[0].self_attn) is FusedAttention
    assert model.parameter_bytes == load(tiny_model_dir, "dense").parameter_bytes
    beside = load(tiny_model_dir, "quantized", write_adapter(tmp_path / "other", tiny_model_dir))
    assert type(beside.network.layers[0].self_attn) is not FusedAttention
    assert beside.vocabulary_size == VOCABULARY


def test_drafts_leave_its_answers_alone(tmp_path: Path, tiny_model_dir: Path) -> None:
    adapter = write_adapter(tmp_path / "lora", tiny_model_dir)
    engine = akunu_py.load(
        akunu_py.ModelOptions(str(tiny_model_dir), adapter_path=str(adapter), weights="quantized")
    )
    prompt = "one two one two one two"
    plain = engine.generate(prompt, Options(24, drafter="none"))
    assert engine.generate(prompt, Options(24, num_draft_tokens=4)).token_ids == plain.token_ids
    other = akunu_py.load(str(tiny_model_dir)).generate(prompt, Options(24, drafter="none"))
    assert other.token_ids != plain.token_ids


CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapters.safetensors"


def no_scale(folder: Path) -> None:
    config = json.loads((folder / CONFIG_FILE).read_text())
    del config["lora_parameters"]["scale"]
    (folder / CONFIG_FILE).write_text(json.dumps(config))


def of_another_model(folder: Path) -> None:
    path = str(folder / WEIGHTS_FILE)
    weights = {
        name: value[:, :1] for name, value in cast(dict[str, mx.array], mx.load(path)).items()
    }
    mx.save_safetensors(path, weights)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: folder.rename(f"{folder}-elsewhere"), "There is no adapter folder"),
        (lambda folder: (folder / CONFIG_FILE).unlink(), "it has no adapter_config.json"),
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), "it has no adapters.safetensors"),
        (lambda folder: (folder / CONFIG_FILE).write_text("{"), "is damaged"),
        (no_scale, "missing required key 'scale'"),
        (lambda folder: os.truncate(folder / WEIGHTS_FILE, 100), "is damaged"),
        (of_another_model, "does not fit the model"),
    ],
)
def test_a_broken_adapter_is_one_sentence(
    tmp_path: Path, tiny_model_dir: Path, damage: Callable[[Path], object], reason: str
) -> None:
    adapter = write_adapter(tmp_path / "lora", tiny_model_dir)
    damage(adapter)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        load(tiny_model_dir, "dense", adapter)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
