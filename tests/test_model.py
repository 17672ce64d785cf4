"""Loading a model, and one sentence for each way in which it fails."""

import json
import math
import os
import shutil
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import huggingface_hub
import mlx.core as mx
import pytest
from huggingface_hub import errors
from mlx_lm import utils

import akunu_py
from akunu_py.errors import InvalidRequestError, ModelLoadError, ModelNotFoundError
from akunu_py.machine.backend import Backend, find_backend
from akunu_py.model.files import (
    HEAD_FILES,
    bundled_model,
    find_model,
    model_name,
    tokenizer_fingerprint,
)
from akunu_py.model.loading import load_target, load_tokenizer
from akunu_py.options import BUNDLED_MODEL, ModelOptions
from tests.architectures import make_model


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, to be broken."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def without_a_shard(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    first, *others = sorted(weights)
    kept, lost = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    mx.save_safetensors(str(folder / kept), {first: weights[first]}, {"format": "mlx"})
    places = {first: kept} | dict.fromkeys(others, lost)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    remove(folder, "model.safetensors")


def folder_for_weights(folder: Path) -> None:
    remove(folder, "model.safetensors")
    (folder / "model.safetensors").mkdir()


def pipe(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def own_code(folder: Path) -> None:
    change_config(folder, model_file="evil.py")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: remove(folder, "config.json"), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{not json"), "cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[1, 2]"), "not a JSON object"),
        (lambda folder: remove(folder, "model.safetensors"), "weights are missing"),
        (
            lambda folder: os.truncate(folder / "model.safetensors", 5000),
            "cannot be read; download them again",
        ),
        (
            lambda folder: os.truncate(folder / "model.safetensors", 0),
            "cannot be read; download them again",
        ),
        (
            lambda folder: change_config(folder, hidden_size=256),
            "do not fit its config.json|does not load",
        ),
        (lambda folder: change_config(folder, num_hidden_layers=3), "do not fit its config.json"),
        (lambda folder: change_config(folder, num_hidden_layers=10**9), "layers 1000000000, which"),
        (lambda folder: change_config(folder, text_config={"n_layer": 10**9}), "impossible"),
        (lambda folder: change_config(folder, max_position_embeddings=10**15), "impossible"),
        (lambda folder: change_config(folder, max_position_embeddings=-1), "impossible"),
        (lambda folder: change_config(folder, rope_theta=0), "rope_theta 0, which is impossible"),
        (lambda folder: change_config(folder, rope_theta=math.nan), "rope_theta nan, which"),
        (lambda folder: change_config(folder, text_config=[1]), r"text_config \[1\], which"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**5), "cannot be read"),
        (
            lambda folder: change_config(folder, model_type="megatronosaurus"),
            "'megatronosaurus', which the installed mlx-lm does not know",
        ),
        (own_code, "runs its own Python code; if you trust it, add --trust-remote-code"),
        (lambda folder: remove(folder, "tokenizer.json", "tokenizer_config.json"), "does not load"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "does not load"),
        (without_a_shard, "has no model-00002-of-00002.safetensors, a part of its weights"),
        (folder_for_weights, "model.safetensors is not a file"),
        (lambda folder: pipe(folder, "config.json"), "cannot be read: it is not a regular file"),
        (lambda folder: pipe(folder, "tokenizer.json"), "tokenizer.json is not a regular file"),
        (lambda folder: pipe(folder, "chat_template.jinja"), "is not a regular file"),
        (lambda folder: os.truncate(folder / "config.json", 1 << 25), "has more than 4 MiB"),
    ],
)
def test_a_broken_model_is_one_sentence(
    copy: Path, damage: Callable[[Path], object], reason: str
) -> None:
    damage(copy)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        load_target(str(copy), find_backend())
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) < 500


def test_a_size_that_only_a_forward_pass_notices_is_one_sentence() -> None:
    model = make_model("gemma3")
    model.network.language_model.model.sliding_window_pattern = 10**9
    with pytest.raises(ModelLoadError, match=r"cannot compute what its config\.json says"):
        model.cache_bytes(1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("./nowhere", "no model folder"),
        ("nowhere", "no model folder"),
        ("a/b/c", "no model folder"),
        ("", "no model folder|no config.json"),
        ("not a/hub name!", "neither a folder nor"),
    ],
)
def test_a_missing_model_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ModelLoadError, match=reason) as error:
        find_model(name)
    assert isinstance(error.value, ModelNotFoundError) or not name


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ModelLoadError, match="is a file"):
        find_model(str(file))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (errors.LocalEntryNotFoundError("offline"), "could not be fetched from the hub; check"),
        (
            OSError(28, "No space left on device"),
            r"from the hub \(No space left on device\); check",
        ),
        (errors.HFValidationError("no such name"), "neither a folder nor a model on the hub"),
    ],
)
def test_what_the_hub_raises_is_one_sentence(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(ModelLoadError, match=sentence) as told:
        akunu_py.load("mlx-community/some-model")
    shown = "".join(traceback.format_exception(told.value))
    assert type(error).__name__ not in shown
    assert shown.count("Traceback") == 1


def test_a_tokenizer_alone_fetches_no_weights(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[list[str]] = []

    def snapshot(_: str, *, allow_patterns: list[str]) -> str:
        fetched.append(allow_patterns)
        return str(tiny_model_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    load_tokenizer("mlx-community/some-model")
    find_model("mlx-community/some-model")
    assert set(fetched[1]) == {*utils.DEFAULT_ALLOW_PATTERNS, *HEAD_FILES}
    assert [any("safetensors" in pattern for pattern in patterns) for patterns in fetched] == [
        False,
        True,
    ]


def test_a_folder_called_like_the_bundled_model_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BUNDLED_MODEL).mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model(BUNDLED_MODEL) == bundled_model()
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        find_model(f"./{BUNDLED_MODEL}")


def test_a_model_keeps_the_name_that_the_user_gave(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "3f1c9a"
    assert model_name("mlx-community/Qwen3-4B-4bit", snapshot) == "mlx-community/Qwen3-4B-4bit"
    assert model_name("/models/llama", Path("/models/llama")) == "llama"
    assert model_name("ember", Path("/package/bundled/ember")) == "ember"


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer_config.json",
        "tiktoken.model",
        "tokenizer.jsonl",
        "tokenization_kimi.py",
        "vocab.txt",
    ],
)
def test_every_file_of_a_tokenizer_is_in_its_fingerprint(copy: Path, name: str) -> None:
    before = tokenizer_fingerprint(copy)
    (copy / "README.md").write_text("more")
    assert tokenizer_fingerprint(copy) == before
    (copy / name).write_text("{}")
    assert tokenizer_fingerprint(copy) != before


def test_code_of_a_model_runs_only_if_it_is_trusted(copy: Path) -> None:
    ran = copy / "ran"
    own_code(copy)
    (copy / "evil.py").write_text(
        f"from mlx_lm.models.llama import Model, ModelArgs\nopen({str(ran)!r}, 'w').close()\n"
    )
    with pytest.raises(ModelLoadError):
        load_target(str(copy), find_backend())
    assert not ran.exists()
    load_target(ModelOptions(str(copy), trust_remote_code=True), find_backend())
    assert ran.exists()


def test_weights_have_the_wanted_layout(quantized_model_dir: Path) -> None:
    backend = find_backend()
    quantized = load_target(ModelOptions(str(quantized_model_dir), weights="quantized"), backend)
    dense = load_target(ModelOptions(str(quantized_model_dir), weights="dense"), backend)
    assert (quantized.layout, dense.layout) == ("quantized", "dense")
    assert quantized.parameter_bytes < dense.parameter_bytes
    prompt = mx.array([1, 2, 3])
    left = quantized.forward(prompt, quantized.make_cache(8))
    right = dense.forward(prompt, dense.make_cache(8))
    assert mx.allclose(left, right, atol=1e-2)
    with pytest.raises(InvalidRequestError, match="no weight layout 'tiny'"):
        load_target(ModelOptions(str(quantized_model_dir), weights="tiny"), backend)


def test_auto_is_quantized_on_a_gpu_and_dense_on_a_cpu_if_it_fits() -> None:
    gpu, cpu = Backend("metal", "M4 Pro"), Backend("cpu", "a CPU", "mkl", 2)
    assert gpu.weight_layout("auto", 1) == "quantized"
    assert cpu.weight_layout("auto", 1 << 20) == "dense"
    assert cpu.weight_layout("auto", 1 << 50) == "quantized"


def test_a_prefill_in_steps_equals_a_prefill_in_one(tiny_model_dir: Path) -> None:
    model = load_target(str(tiny_model_dir), find_backend())
    tokens = [(7 * i) % 256 for i in range(50)]
    told: list[int] = []
    caches = []
    for step, overlaps in ((7, True), (7, False), (64, True)):
        cache = model.make_cache(64)
        told.extend(model.prefill_chunks(tokens, cache, step=partial(int, step), overlaps=overlaps))
        caches.append([mx.array(buffer[..., :50, :]) for buffer in cache.layers[1].state])
    assert all(mx.array_equal(a, b) for a, b in zip(*caches[:2], strict=True))
    assert all(mx.allclose(a, b, atol=1e-4) for a, b in zip(*caches[1:], strict=True))
    assert told == [*[7, 14, 21, 28, 35, 42, 49, 50] * 2, 50]


def test_a_prefill_writes_into_its_buffers_in_place(tiny_model_dir: Path) -> None:
    model = load_target(str(tiny_model_dir), find_backend())
    cache = model.make_cache(100_000)
    model.prefill([1], cache)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model.prefill([1] * 40, cache, step=10)
    assert mx.get_peak_memory() - before < cache.nbytes / len(cache.layers) / 4, (
        "no buffer is copied"
    )
