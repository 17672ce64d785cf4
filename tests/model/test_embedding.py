"""Vectors of texts against a forward in NumPy, and how models that make them are told apart."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import akunu_py
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError, InvalidRequestError, ModelLoadError
from akunu_py.machine.backend import find_backend
from akunu_py.model import embedding
from akunu_py.model.embedding import compute_vectors
from akunu_py.model.library import LocalModel
from akunu_py.model.target_model import TargetModel
from tests.architectures import config, make_network
from tests.qwen import POOL, add_modules, pooled, states, weights_of, write_qwen

TEXTS = [[5, 9, 13, 2], [7], list(range(40)), [3] * 300, [1, 2, 3], [8] * 130]
"""Some share a forward, and two take several."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return akunu_py.load(str(folder))


def vectors(engine: Engine, texts: list[list[int]], *how: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for part in compute_vectors(engine.model, engine.backend, texts, *how):
        assert not part.keys() & found.keys()
        found |= part
    return [found[index] for index in range(len(texts))]


def is_close(own: Any, wanted: Any) -> bool:
    return bool(np.allclose(own, wanted, rtol=1e-4, atol=1e-4))


@pytest.mark.parametrize("pooling", ["lasttoken", "mean", "cls"])
def test_vectors_are_pooled_states(engine: Engine, folder: Path, pooling: str) -> None:
    together = vectors(engine, TEXTS, pooling)
    for text, vector in zip(TEXTS, together, strict=True):
        assert is_close(vector, pooled(folder, text, pooling))
        assert is_close(vector, vectors(engine, [text], pooling)[0]), "company changes nothing"


@pytest.mark.parametrize("family", ["gemma2", "lfm2", "qwen3_next", "deepseek_v3"])
def test_company_changes_nothing_in_other_layers(family: str) -> None:
    """Windows, short convolutions, recurrences and latent attention."""
    network: Any = make_network(family)
    model = TargetModel(
        network, None, config(family), name=family, layout="dense"  # type: ignore[arg-type]
    )  # fmt: skip
    engine: Any = SimpleNamespace(model=model, backend=find_backend())
    texts = [[1, 2, 3], [4] * 140, [5, 6], [7, 8, 9, 10]]
    for text, vector in zip(texts, vectors(engine, texts, "mean"), strict=True):
        assert is_close(vector, vectors(engine, [text], "mean")[0])


def test_a_model_that_is_split_among_processes_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model, "ranks", "two processes")
    with pytest.raises(InvalidRequestError, match="is split"):
        vectors(engine, TEXTS, "mean")


def test_logits_of_some_tokens(engine: Engine, folder: Path) -> None:
    matrix = weights_of(folder)["model.embed_tokens.weight"]
    for text, found in zip(TEXTS, vectors(engine, TEXTS, "lasttoken", [11, 200]), strict=True):
        assert is_close(found, (states(folder, text)[-1] @ matrix.T)[[11, 200]])


def test_long_texts_take_several_passes_and_short_ones_share_one(engine: Engine) -> None:
    parts = compute_vectors(engine.model, engine.backend, TEXTS, "mean")
    assert [sorted(part) for part in parts] == [[], [], [3], [], [5], [0, 2, 4], [1]]


def test_a_text_that_does_not_fit_into_memory_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "free_device_bytes", lambda: 1000)
    with pytest.raises(ContextOverflowError, match="300 tokens does not fit into the free memory"):
        vectors(engine, TEXTS, "mean")


def test_files_of_a_body_alone_load(folder: Path, tmp_path: Path) -> None:
    """As Qwen3-Embedding has them: names without `model.`, and no output matrix, though its
    configuration says that there is one."""
    bare = write_qwen(tmp_path / "Qwen3-Embedding-bare", tie_word_embeddings=False)
    found: Any = mx.load(str(folder / "model.safetensors"))
    body = {name.removeprefix("model."): weight for name, weight in found.items()}
    mx.save_safetensors(str(bare / "model.safetensors"), body)
    own = akunu_py.load(str(bare))
    assert is_close(vectors(own, TEXTS, "mean"), [pooled(folder, text, "mean") for text in TEXTS])


def test_qwens_class_of_tokenizers_keeps_the_end(tmp_path: Path) -> None:
    folder = write_qwen(tmp_path / "embed")
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}
    file.write_text(json.dumps(settings))
    tokenizer = akunu_py.load(str(folder)).tokenizer
    assert tokenizer.decode(tokenizer.encode("ab")) == "ab<|endoftext|>"


NORMALIZE = "models.Normalize"
RANKS = "cross_encoder.modules.logit_score.LogitScore"


@pytest.mark.parametrize(
    ("name", "add", "kind", "pooling"),
    [
        ("a", lambda folder: folder, "chat", "lasttoken"),
        ("Qwen3-Embedding-0.6B-4bit", lambda folder: folder, "embedding", "lasttoken"),
        ("jina-embeddings-v9", lambda folder: folder, "embedding", "lasttoken"),
        ("Qwen3-Reranker-0.6B-mxfp8", lambda folder: folder, "reranking", "lasttoken"),
        ("embedded-coder", lambda folder: folder, "chat", "lasttoken"),
        ("a", lambda folder: add_modules(folder, POOL, NORMALIZE), "embedding", "lasttoken"),
        ("a", lambda it: add_modules(it, {"pooling_mode_mean_tokens": True}), "embedding", "mean"),
        ("a", lambda it: add_modules(it, {"pooling_mode": "cls"}), "embedding", "cls"),
        ("Qwen3-Reranker-4B", lambda it: add_modules(it, None, RANKS), "reranking", "lasttoken"),
    ],
)
def test_what_files_say(
    tmp_path: Path, name: str, add: Callable[[Path], Path], kind: str, pooling: str
) -> None:
    folder = add(write_qwen(tmp_path / "it"))
    model = LocalModel(f"embed-ai/{name}", folder)
    assert (model.kind, model.pooling, model.why_not) == (kind, pooling, None)


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda it: add_modules(it, POOL, "models.Dense"), "it needs Dense, which is not"),
        (lambda it: add_modules(it, {"pooling_mode": "max"}), "it needs max, which is not"),
        (lambda it: add_modules(it, {"pooling_mode": ["cls", "mean"]}), "it needs ['cls', 'mean']"),
        (lambda it: add_modules(it, POOL | {"pooling_mode_max_tokens": True}), "lasttoken and "),
        (lambda it: add_modules(it, None, RANKS), "it needs LogitScore, which is not"),
        (lambda it: change_config(add_modules(it, POOL), is_causal=False), "attend to later ones"),
        (
            lambda it: change_config(add_modules(it, POOL), use_bidirectional_attention=True),
            "attend to later ones",
        ),
    ],
)
def test_what_cannot_be_computed_is_neither_offered_nor_loaded(
    tmp_path: Path, add: Callable[[Path], Path], why: str
) -> None:
    folder = add(write_qwen(tmp_path / "it"))
    assert why in str(LocalModel("it", folder).why_not)
    with pytest.raises(ModelLoadError, match="it cannot be used: "):
        akunu_py.load(str(folder))


def change_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder
