"""The full-precision folder, quantized by mlx-lm: the bundled model.

    python -m models.training.quantize --work FOLDER --to models/ember --bits 8

Runs in the environment that has mlx-lm, not in the one that trains. Only files of the model
are replaced in the target; its card stays.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from mlx_lm import convert

GROUP_SIZE = 64
MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)


def quantize(full: Path, target: Path, *, bits: int) -> None:
    """Convert `full` and put the six files of a model into `target`.

    The tokenizer's files and the generation settings are those of `full`, byte for byte:
    what a library writes back depends on its version.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "quantized"
        convert(
            str(full),
            mlx_path=str(made),
            quantize=True,
            q_group_size=GROUP_SIZE,
            q_bits=bits,
            dtype="float32",
        )
        for name in MODEL_FILES:
            converted = name in ("config.json", "model.safetensors")
            shutil.copyfile((made if converted else full) / name, target / name)


def main() -> None:
    """Quantize into the folder of the bundled model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--bits", type=int, default=8)
    options = parser.parse_args()
    quantize(options.work / "full", options.to, bits=options.bits)


if __name__ == "__main__":
    main()
