"""A Llama of 109 million random parameters with the bundled model's tokenizer, as a folder.

    python -m benchmarks.random_model FOLDER
    python -m akunu_py bench speedup --model FOLDER --answers forced --workloads edit question novel

Its own answers mean nothing. Forced ones tell what speculation brings where forwards cost what
they cost on a model of this size.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, Final

from akunu_py.backend import find_backend

BUNDLED: Final = Path(__file__).parents[1] / "models" / "ember"
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 768,
    "num_hidden_layers": 15,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
}


def write_random_model(folder: Path) -> int:
    """Writes the model in float32; returns the number of its parameters."""
    find_backend()
    import mlx.core as mx  # noqa: PLC0415  (after the BLAS, and not for --help)
    from mlx.utils import tree_flatten  # noqa: PLC0415
    from mlx_lm.models import llama  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for file in (*BUNDLED.glob("tokenizer*"), *BUNDLED.glob("*.jinja")):
        shutil.copyfile(file, folder / file.name)
    bundled = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in bundled.items() if not key.startswith("quantization")}
    config |= SHAPE
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    mx.random.seed(0)
    network = llama.Model(llama.ModelArgs.from_dict(config))
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return sum(weight.size for weight in weights.values())


def main() -> None:
    """Writes the folder and says how large the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"{folder}: {write_random_model(folder) / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()
