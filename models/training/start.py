"""A checkpoint made of a finished model, to train it further.

    python -m models.training.start --from models/ember --work FOLDER --stage "first messages"

The work folder gets the model's tokenizer and a checkpoint at the beginning of a stage, with a
fresh optimizer; `python -m models.training --work FOLDER` goes on from there. `--drop 7` leaves a
layer out, counted from zero. `--insert 5 6` makes a deeper model of what is left: layers that
change nothing at first stand at those indices of the result. `--quieter 16` divides what every old
layer adds to the stream, so that new layers need not become as large to be heard.
`--tell-bytes-apart` draws the embeddings of bytes outside ASCII anew. A model that is narrower than
today's is made as wide, and computes the same at first.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from models.training import tokenizer as tokenizers
from models.training.stages import CURRICULUM, stage_names, total_steps
from models.training.substitution import high_bytes, word_pieces

_LAYERS = "model.layers."
_LAYER = re.compile(r"model\.layers\.(\d+)")


def dense_weights(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a folder in float32; quantized ones must have 8 bits."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stored = load_file(folder / "model.safetensors")
    names = [name for name in stored if not name.endswith((".scales", ".biases"))]
    return {name: _dense(name, stored, config) for name in names}


def _dense(
    name: str, stored: dict[str, np.ndarray], config: dict[str, dict[str, int]]
) -> np.ndarray:
    stem = name.removesuffix(".weight")
    values = stored[name]
    if f"{stem}.scales" not in stored:
        return values.astype(np.float32)
    if config["quantization"]["bits"] != 8:
        raise ValueError("only weights of 8 bits can be trained further")
    scales, biases = (stored[f"{stem}.{part}"].astype(np.float32) for part in ("scales", "biases"))
    groups = values.view(np.uint8).reshape(*scales.shape, -1).astype(np.float32)
    dense: np.ndarray = groups * scales[..., None] + biases[..., None]
    return dense.reshape(len(values), -1)


def drop_layer(weights: dict[str, np.ndarray], index: int) -> None:
    """Leave a layer out, in place."""
    kept = {n: array for n, array in weights.items() if not n.startswith(f"{_LAYERS}{index}.")}
    weights.clear()
    weights.update({_moved(name, index, -1): array for name, array in kept.items()})


def insert_layer(weights: dict[str, np.ndarray], index: int) -> None:
    """Insert a layer at `index`, in place; the model computes the same as before."""
    rng = np.random.default_rng(index)
    like = [name for name in weights if name.startswith(f"{_LAYERS}0.")]
    fresh = {}
    for name in like:
        new = name.replace(f"{_LAYERS}0.", f"{_LAYERS}{index}.")
        shape = weights[name].shape
        if len(shape) == 1:
            fresh[new] = np.ones(shape, np.float32)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            fresh[new] = np.zeros(shape, np.float32)
        else:
            fresh[new] = rng.normal(0.0, shape[1] ** -0.5, shape).astype(np.float32)
    arrays = {_moved(name, index, 1): array for name, array in weights.items()}
    weights.clear()
    weights.update(arrays | fresh)


def _moved(name: str, index: int, by: int) -> str:
    """The name of a weight once the layers from `index` on have moved by one."""
    found = _LAYER.match(name)
    if not found or int(found[1]) < index:
        return name
    return f"{_LAYERS}{int(found[1]) + by}{name[found.end() :]}"


def make_quieter(weights: dict[str, np.ndarray], by: float) -> None:
    """Divide by `by` what each layer adds to the stream, in place.

    Each layer begins with a norm, so nearly nothing else changes: only the embedding weighs more
    beside what the layers add. But an optimizer that changes a matrix by the same amount wherever
    it is, as Muon does, changes these weights more, and layers that begin at nothing catch up.
    """
    for name, array in weights.items():
        if name.endswith(("v_proj.weight", "o_proj.weight", "up_proj.weight", "down_proj.weight")):
            weights[name] = array / np.float32(by**0.5)


def widen(
    weights: dict[str, np.ndarray], hidden: int, intermediate: int, num_kv_heads: int
) -> None:
    """Give the stream `hidden` channels and the feed-forwards `intermediate` neurons, in place.

    Each of the `num_kv_heads` key heads gets more query heads. Up to the epsilon of the norms, the
    model computes the same as before: nothing is written into the new channels at first, the norms
    allow for their number, and what the new heads and neurons find is not used. They look at all
    channels, so that they can be of use after the first steps.
    """
    rng = np.random.default_rng(hidden)
    old = weights["model.norm.weight"].size
    heads, neurons = (num_kv_heads, hidden), (1, intermediate)
    for name, array in weights.items():
        if array.ndim == 1:
            # New channels make the mean square smaller.
            kept = array * np.float32((old / hidden) ** 0.5)
            weights[name] = np.append(kept, np.full(hidden - old, kept.mean(), np.float32))
        elif name.endswith(("q_proj.weight", "gate_proj.weight", "up_proj.weight")):
            groups, rows = heads if name.endswith("q_proj.weight") else neurons
            wide = _wider(array, hidden).reshape(groups, -1, hidden)
            fresh = rng.normal(0.0, hidden**-0.5, (groups, (rows - len(array)) // groups, hidden))
            whole = np.concatenate((wide, fresh), axis=1, dtype=np.float32)
            weights[name] = whole.reshape(rows, hidden)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            groups, columns = heads if name.endswith("o_proj.weight") else neurons
            wide = _wider(array.reshape(old, groups, -1), columns // groups)
            weights[name] = _wider(wide.reshape(old, columns).T, hidden).T.copy()
        else:
            weights[name] = _wider(array, hidden)


def _wider(array: np.ndarray, columns: int) -> np.ndarray:
    """The array with zeros added, until it has so many columns."""
    missing = columns - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])


def tell_bytes_apart(embedding: np.ndarray, pieces: np.ndarray, others: np.ndarray) -> None:
    """Move the rows of the `pieces` apart, in place, as far as those of the `others` lie apart.

    Bytes outside ASCII are so rare that their rows become the same, and what cannot be told apart
    cannot be copied. Heads that copy do so by direction, and follow new ones at once.
    """
    spread = embedding[others] - embedding[others].mean(0)
    _, lengths, axes = np.linalg.svd(spread, full_matrices=False)
    drawn = np.random.default_rng(0).normal(size=(len(pieces), len(lengths)))
    embedding[pieces] += (drawn * lengths / len(others) ** 0.5 @ axes).astype(embedding.dtype)


def start(
    folder: Path,
    work: Path,
    stage: str,
    *,
    dropped: Sequence[int] = (),
    inserted: Sequence[int] = (),
    quieter: float = 1.0,
    bytes_apart: bool = False,
) -> int:
    """Write the checkpoint and the tokenizer; returns the step that the stage begins at.

    The layers `dropped` are left out, and new layers stand at the indices `inserted` of the result.
    A model narrower than today's becomes as wide.
    """
    import torch  # noqa: PLC0415  (the weights are read where there is none, too)

    from models.training.model import Shape  # noqa: PLC0415

    step = total_steps(CURRICULUM[: stage_names(CURRICULUM).index(stage)])
    (work / "tokenizer").mkdir(parents=True, exist_ok=True)
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, work / "tokenizer" / file.name)
    (work / "tokenizer.done").touch()  # another one would not fit the weights
    arrays = dense_weights(folder)
    make_quieter(arrays, quieter)
    for index in sorted(dropped, reverse=True):
        drop_layer(arrays, index)
    for index in sorted(inserted):
        insert_layer(arrays, index)
    if bytes_apart:
        processor = tokenizers.load(work / "tokenizer")
        rows = arrays["model.embed_tokens.weight"]
        tell_bytes_apart(rows, high_bytes(processor), word_pieces(processor))
    today = Shape()
    if arrays["model.norm.weight"].size < today.hidden_size:
        widen(arrays, today.hidden_size, today.intermediate_size, today.num_kv_heads)
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    layers = {layer[1] for layer in map(_LAYER.match, weights) if layer}
    shape = asdict(Shape(num_layers=len(layers)))
    before = {"optimizer": None, "step": step, "seconds": 0.0}
    torch.save({"model": weights, "shape": shape, **before}, work / "checkpoint.pt")
    return step


def main() -> None:
    """Write the checkpoint and say where it begins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", type=Path, required=True, dest="folder")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stage", required=True, choices=stage_names(CURRICULUM))
    parser.add_argument("--drop", type=int, nargs="+", default=(), metavar="LAYER")
    parser.add_argument("--insert", type=int, nargs="+", default=(), metavar="LAYER")
    parser.add_argument("--quieter", type=float, default=1.0, metavar="TIMES")
    parser.add_argument("--tell-bytes-apart", action="store_true")
    options = parser.parse_args()
    step = start(
        options.folder,
        options.work,
        options.stage,
        dropped=options.drop,
        inserted=options.insert,
        quieter=options.quieter,
        bytes_apart=options.tell_bytes_apart,
    )
    print(f"step {step}")


if __name__ == "__main__":
    main()
