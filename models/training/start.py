"""A checkpoint made of a finished model, to train it further.

    python -m models.training.start --from models/ember --work FOLDER --stage "first messages"

The work folder gets the model's tokenizer and a checkpoint at the beginning of a stage, with a
fresh optimizer; `python -m models.training --work FOLDER` goes on from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
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


def start(folder: Path, work: Path, stage: str) -> int:
    """Write the checkpoint and the tokenizer; returns the step that the stage begins at."""
    import torch  # noqa: PLC0415  (the weights are read where there is none, too)

    step = total_steps(CURRICULUM[: stage_names(CURRICULUM).index(stage)])
    (work / "tokenizer").mkdir(parents=True, exist_ok=True)
    for file in folder.glob("tokenizer*"):
        shutil.copyfile(file, work / "tokenizer" / file.name)
    weights = {name: torch.from_numpy(array) for name, array in dense_weights(folder).items()}
    checkpoint = {"model": weights, "optimizer": None, "step": step, "seconds": 0.0}
    torch.save(checkpoint, work / "checkpoint.pt")
    return step


def main() -> None:
    """Write the checkpoint and say where it begins."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", type=Path, required=True, dest="folder")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--stage", required=True, choices=stage_names(CURRICULUM))
    options = parser.parse_args()
    print(f"step {start(options.folder, options.work, options.stage)}")


if __name__ == "__main__":
    main()
