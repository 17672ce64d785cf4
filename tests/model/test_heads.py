"""A model's own head: found by its tensors in every layout, and its states are those of a forward
written out in NumPy, from the tensors as they are stored."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from akunu_py.cache.model_cache import HeadCache
from akunu_py.errors import InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import ModelOptions
from tests.architectures import COMMON, make_network, random_tokens
from tests.model.heads import (
    CASES,
    LAYERS,
    ROWS,
    SIZE,
    Case,
    Weights,
    embedding,
    expected,
    is_close,
    is_norm,
    load,
    random_head,
    rms,
    trunk,
    with_bias,
    write_model,
)

TOKENS: Final = random_tokens(1, ROWS + 1)


def assert_computes(model: TargetModel, case: Case, head: Weights) -> None:
    """Whether a model's head has the states and the logits of NumPy, in parts and after a rollback;
    `head` are the tensors as the family stores them, not quantized."""
    assert model.head is not None
    _, hidden = trunk(model, TOKENS)
    states, normed = expected(case, head, embedding(model, TOKENS[1:]), np.array(hidden[:-1]))
    cache, parts = model.head.make_cache(32), []
    for start, stop in ((0, 6), (6, 8), (8, 9), (9, ROWS)):
        following = mx.array(TOKENS[start + 1 : stop + 1])
        parts.append(model.head(following, hidden[start:stop], cache))
    assert cache.length == ROWS
    own = mx.concatenate(parts)
    assert is_close(own, states)
    cache.rollback(7)
    assert is_close(model.head(mx.array(TOKENS[8:9]), hidden[7:8], cache), states[7:8])

    waiting = HeadCache(model.head, model.head.make_cache(32))
    waiting.note(hidden[:-1], TOKENS, 0)
    read = waiting.read()
    assert read is not None
    assert is_close(read, states[-1:])

    (matrix,) = (
        weight
        for path, weight in tree_flatten(model.network.parameters())
        if path.endswith("lm_head.weight")
    )
    assert is_close(model.head.logits(own), normed @ np.array(matrix).T)


@pytest.mark.parametrize("name", CASES)
def test_a_head_computes_what_its_family_defines(name: str, tmp_path: Path) -> None:
    case, head = CASES[name], random_head(CASES[name])
    folder = write_model(tmp_path / "model", case, head)
    model = load(folder)
    logits, _ = trunk(model, TOKENS)
    plain = make_network(case.family, **case.changes)(mx.array([TOKENS]))
    assert is_close(plain[0], logits)

    assert_computes(model, case, head)


def test_of_several_steps_the_first_guesses_with_its_own_output_matrix(tmp_path: Path) -> None:
    case = CASES["step3p5"]
    draw = np.random.default_rng(8)
    heads, matrices = [], []
    stored: Weights = {}
    for step in range(3):
        head = random_head(case, seed=step)
        matrix = (draw.normal(size=(COMMON["vocab_size"], SIZE)) / 5).astype(np.float32)
        heads.append(head)
        matrices.append(matrix)
        at = f"model.layers.{LAYERS + step}."
        for name, one in head.items():
            spelled = name.replace("shared_head", "transformer.shared_head")
            stored[spelled.replace(case.at, at)] = one
        stored[f"{at}transformer.shared_head.output.weight"] = matrix
    model = load(write_model(tmp_path / "model", case, stored))
    assert model.head is not None
    assert not model.head.repeats
    _, states = trunk(model, TOKENS)
    embedded, hidden = embedding(model, TOKENS[1:]), np.array(states[:-1])
    wanted, normed = expected(case, heads[0], embedded, hidden)
    found = model.head(mx.array(TOKENS[1:]), states[:-1], model.head.make_cache(32))
    assert is_close(found, wanted)
    assert is_close(model.head.logits(found), normed @ matrices[0].T)


def test_a_copy_of_the_models_output_matrix_takes_no_memory(tmp_path: Path) -> None:
    case = CASES["glm4_moe"]
    matrix = dict(tree_flatten(make_network(case.family).parameters()))["lm_head.weight"]
    copied = {f"{case.at}shared_head.head.weight": np.array(matrix)}
    sizes = []
    for index, more in enumerate(({}, copied)):
        folder = write_model(tmp_path / f"m{index}", case, random_head(case) | more)
        head = load(folder).head
        assert head is not None
        sizes.append(head.parameter_bytes)
    assert sizes[0] == sizes[1]


def test_fp8_blocks_are_dequantized(tmp_path: Path) -> None:
    case = CASES["deepseek_v3"]
    width = 144  # more than one block
    narrow = {name: one for name, one in case.shapes.items() if not name.startswith("mlp.")}
    case = replace(case, shapes=narrow | with_bias(width), changes={"moe_intermediate_size": width})
    head = random_head(case)
    stored: dict[str, Any] = dict(head)
    for name in [name for name in head if "experts" in name or "q_b_proj" in name]:
        rows, columns = (-(-size // 128) for size in head[name].shape)
        scales = 2.0 ** np.random.default_rng(1).integers(-3, 3, (rows, columns))
        by_block = np.repeat(np.repeat(scales, 128, 0), 128, 1)[
            : head[name].shape[0], : head[name].shape[1]
        ]
        stored[name] = mx.to_fp8(mx.array(head[name] / by_block))
        stored[f"{name}_scale_inv"] = scales.astype(np.float32)
        head[name] = np.array(mx.from_fp8(stored[name], dtype=mx.float32)) * by_block
    model = load(write_model(tmp_path / "model", case, stored))
    assert_computes(model, case, head)


@pytest.mark.parametrize(
    ("name", "bits", "group_size"), [("mimo", 8, 32), ("glm4_moe", 4, 32), ("nemotron_h", 8, 16)]
)
def test_a_quantized_head_stays_as_it_is_stored(
    name: str, bits: int, group_size: int, tmp_path: Path
) -> None:
    case, stored = CASES[name], dict[str, Any]()
    head = random_head(case)
    group_size = max(group_size, 32)
    for spelled, one in head.items():
        is_packed = (
            one.ndim == 2 and one.shape[1] % group_size == 0 and "gate.weight" not in spelled
        )
        if not is_packed or (name == "nemotron_h" and "experts." in spelled):
            stored[spelled] = one
            continue
        packed = mx.quantize(mx.array(one), group_size, bits)
        path = spelled.removesuffix("weight")
        stored |= zip((spelled, path + "scales", path + "biases"), packed, strict=True)
        head[spelled] = np.array(mx.dequantize(*packed, group_size, bits))
    model = load(write_model(tmp_path / "model", case, stored))
    assert_computes(model, case, head)
    assert model.head is not None
    whole = sum(one.nbytes for one in head.values())
    assert model.head.parameter_bytes < 0.8 * whole


@pytest.mark.parametrize("stored_as", ["centered", "mlx", "said to be mlx"])
def test_the_norms_of_a_side_file_have_a_sign_of_their_own(stored_as: str, tmp_path: Path) -> None:
    case = replace(CASES["qwen3_5"], in_side_file=True)
    head = random_head(case)
    metadata = {"rmsnorm_weight_format": "mlx_gamma"} if stored_as == "said to be mlx" else None
    shift = 1.0 if stored_as == "mlx" else 0.0
    stored = {name: one + shift if is_norm(name) else one for name, one in head.items()}
    model = load(write_model(tmp_path / "model", case, stored, metadata))
    assert_computes(model, replace(case, is_centered=metadata is None), head)


@pytest.mark.parametrize("key", ["mtp_hidden_state_mode", "base_hidden_variant"])
def test_the_configuration_may_ask_for_the_states_before_the_norm(key: str, tmp_path: Path) -> None:
    case = CASES["qwen3_5"]
    folder = write_model(tmp_path / "model", case, random_head(case))
    after = trunk(load(folder), TOKENS)[1]
    settings = json.loads((folder / "config.json").read_text())
    settings["text_config"][key] = "pre_norm"
    (folder / "config.json").write_text(json.dumps(settings))
    model = load(folder)
    before = np.array(trunk(model, TOKENS)[1])
    weight = dict(tree_flatten(model.network.parameters()))["language_model.model.norm.weight"]
    assert is_close(after, rms(before, np.array(weight)))
    assert_computes(model, case, random_head(case))


@pytest.mark.parametrize(
    ("name", "pads"),
    [
        *((name, pads) for name in ("llama", "qwen3_5", "nemotron_h") for pads in (False, True)),
        ("step3p5", False),  # windows are not padded
        ("glm4_moe_lite", True),  # latent attention is always padded
    ],
)
def test_batched_rows_have_the_hidden_states_of_single_forwards(
    name: str, pads: bool, tmp_path: Path
) -> None:
    case = CASES[name]
    model = load(write_model(tmp_path / "model", case, random_head(case)))
    texts = [random_tokens(seed, 12) for seed in range(3)]
    counts, wanted, caches = (2, 1, 3), [], []
    for text, count in zip(texts, counts, strict=True):
        single, cache = model.make_cache(32), model.make_cache(32)
        model.append(mx.array(text[:8]), single)
        model.append(mx.array(text[:8]), cache)
        model.forward(mx.array(text[8 : 8 + count]), single)
        wanted.append(model.take_hidden())
        caches.append(cache)
    model.pads_batches = pads
    rows = [
        token for text, count in zip(texts, counts, strict=True) for token in text[8 : 8 + count]
    ]
    logits = model.forward_batch(mx.array(rows), caches, counts)
    hidden = model.take_hidden()
    assert hidden.shape == (len(rows), SIZE)
    assert logits.shape[0] == len(rows)
    assert is_close(hidden, np.concatenate([np.array(one) for one in wanted]))


def test_hidden_states_are_taken_once_and_belong_to_the_last_forward(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = load(write_model(tmp_path / "model", case, random_head(case)))
    cache = model.make_cache(32)
    model.forward(mx.array(TOKENS[:4]), cache)
    model.append(mx.array(TOKENS[4:5]), cache)
    assert model.take_hidden().shape == (1, SIZE)
    with pytest.raises(ValueError, match="they were taken"):
        model.take_hidden()


def without_a_layer(head: Weights) -> Weights:
    return {name: one for name, one in head.items() if "q_proj" not in name}


def with_wrong_sizes(head: Weights) -> Weights:
    return {name: one[:7] if "fc" in name else one for name, one in head.items()}


def with_scales_of_nothing(head: Weights) -> Weights:
    return head | {"mtp.norm.weight_scale_inv": np.ones(1)}


@pytest.mark.parametrize("damage", [without_a_layer, with_wrong_sizes, with_scales_of_nothing])
def test_a_head_that_does_not_fit_is_one_sentence(
    damage: Callable[[Weights], Weights], tmp_path: Path, tiny_model_dir: Path
) -> None:
    damaged = {name: mx.array(one) for name, one in damage(random_head(CASES["llama"])).items()}
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    mx.save_safetensors(str(folder / "mtp.safetensors"), damaged)
    backend = find_backend()
    model = load_target(str(folder), backend)
    assert model.head is None
    assert model.why_no_head is not None
    assert "does not fit the model" in model.why_no_head
    assert "\n" not in model.why_no_head
    with pytest.raises(ModelLoadError, match="does not fit the model"):
        load_target(ModelOptions(str(tiny_model_dir), mtp=str(folder)), backend)
    assert load_target(ModelOptions(str(folder), no_mtp=True), backend).why_no_head is None


def test_a_file_is_no_folder_with_a_head() -> None:
    with pytest.raises(ModelLoadError, match="give --mtp the folder"):
        load_target(ModelOptions("ember", mtp=__file__), find_backend())


def test_an_unreadable_head_is_one_sentence(tmp_path: Path, tiny_model_dir: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model_dir, folder)
    (folder / "mtp.safetensors").write_bytes(b"no tensors")
    model = load_target(str(folder), find_backend())
    assert model.head is None
    assert model.why_no_head is not None
    assert "cannot be read" in model.why_no_head


def test_a_model_without_a_head_loads_as_before(tiny_model_dir: Path, tmp_path: Path) -> None:
    backend = find_backend()
    model = load_target(str(tiny_model_dir), backend)
    assert (model.head, model.why_no_head) == (None, None)
    with pytest.raises(ValueError, match="no head is loaded"):
        model.take_hidden()
    for asked, why in ((tiny_model_dir, "has no head"), (tmp_path / "absent", "no folder")):
        with pytest.raises(ModelLoadError, match=why):
            load_target(ModelOptions(str(tiny_model_dir), mtp=str(asked)), backend)
    with pytest.raises(InvalidRequestError, match="omit one"):
        ModelOptions(mtp="a", no_mtp=True)


@pytest.mark.parametrize("file", ["model.safetensors", "mtp/weights.safetensors"])
@pytest.mark.parametrize("prefix", ["mtp.", ""])
def test_a_head_may_be_in_a_folder_of_its_own(file: str, prefix: str, tmp_path: Path) -> None:
    case = CASES["qwen3_5"]
    folder, other = write_model(tmp_path / "model", case, {}), tmp_path / "head"
    assert load(folder).head is None
    head = random_head(case)
    stored = {name.replace("mtp.", prefix): mx.array(one) for name, one in head.items()}
    (other / file).parent.mkdir(parents=True)
    mx.save_safetensors(str(other / file), stored)
    assert_computes(load(folder, other), case, head)


def test_of_a_model_on_the_hub_only_the_shards_of_the_head_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub  # noqa: PLC0415

    case = CASES["qwen3_5"]
    folder, hub = write_model(tmp_path / "model", case, {}), tmp_path / "hub"
    hub.mkdir()
    head = random_head(case)
    shard = "model-00003-of-00003.safetensors"
    mx.save_safetensors(str(hub / shard), {name: mx.array(one) for name, one in head.items()})
    names = {"lm_head.weight": "model-00001-of-00003.safetensors"} | dict.fromkeys(head, shard)
    (hub / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    fetched: list[str] = []

    def snapshot(_: str, *, allow_patterns: list[str]) -> str:
        fetched.extend(allow_patterns)
        return str(hub)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert_computes(load(folder, Path("owner/name")), case, head)
    assert [name for name in fetched if name.startswith("model-")] == [shard]
    assert not any("*.safetensors" in name for name in fetched)


def test_the_bundled_model_brings_a_head() -> None:
    model = load_target("ember", find_backend())
    assert model.head is not None
    assert model.head.describe.startswith("Qwen's layout, 1 layer, ")
