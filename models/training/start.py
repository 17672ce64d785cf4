"""A checkpoint made of a finished model, to train it further.

    python -m models.training.start --from models/ember --work FOLDER --stage "first messages"

The work folder gets the model's tokenizer and a checkpoint at the beginning of a stage, with a
fresh optimizer; `python -m models.training --work FOLDER` goes on from there. `--anew 5 1` lets the
heads on the second key-value head of layer 5 begin anew, for heads that are to be guided and had
learned something else.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from models.training.stages import CURRICULUM, stage_names, total_steps


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


def renew_heads(weights: dict[str, np.ndarray], layer: int, kv_head: int, *, head_dim: int) -> None:
    """Random queries, keys and values of the heads on a key-value head; they say nothing yet."""
    rng = np.random.default_rng(0)
    prefix = f"model.layers.{layer}.self_attn."
    keys = weights[f"{prefix}k_proj.weight"]
    group = len(weights[f"{prefix}q_proj.weight"]) // len(keys)
    for name, heads in (("q_proj", group), ("k_proj", 1), ("v_proj", 1)):
        rows = slice(kv_head * heads * head_dim, (kv_head + 1) * heads * head_dim)
        matrix = weights[f"{prefix}{name}.weight"]
        matrix[rows] = rng.normal(0.0, 0.02, matrix[rows].shape)
    columns = slice(kv_head * group * head_dim, (kv_head + 1) * group * head_dim)
    weights[f"{prefix}o_proj.weight"][:, columns] = 0.0


def start(folder: Path, work: Path, stage: str, anew: Sequence[int] = ()) -> int:
    """Write the checkpoint and the tokenizer; returns the step that the stage begins at.

    `anew` is empty, or a layer and one of its key-value heads (see `renew_heads`).
    """
    import torch  # noqa: PLC0415  (the weights are read where there is none, too)

    step = total_steps(CURRICULUM[: stage_names(CURRICULUM).index(stage)])
    (work / "tokenizer").mkdir(parents=True, exist_ok=True)
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, work / "tokenizer" / file.name)
    arrays = dense_weights(folder)
    if anew:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        renew_heads(arrays, *anew, head_dim=config["head_dim"])
    weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    checkpoint = {"model": weights, "optimizer": None, "step": step, "seconds": 0.0}
    torch.save(checkpoint, work / "checkpoint.pt")
    return step


def main() -> None:
    """Write the checkpoint and say where it begins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", type=Path, required=True, dest="folder")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stage", required=True, choices=stage_names(CURRICULUM))
    parser.add_argument("--anew", type=int, nargs=2, default=(), metavar=("LAYER", "HEAD"))
    options = parser.parse_args()
    print(f"step {start(options.folder, options.work, options.stage, options.anew)}")


if __name__ == "__main__":
    main()
