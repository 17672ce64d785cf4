"""A model of random parameters with the bundled model's tokenizer, as a folder.

    python -m benchmarks.random_model FOLDER
    python -m akunu_py bench speedup --model FOLDER --answers forced --workloads edit question novel
    python -m benchmarks.random_model FOLDER --shape 8b --bits 4

Its own answers mean nothing. Forced ones show what speculation gains at the costs of this size of
model. The shape `8b` is that of Llama 3, but for the vocabulary; the hybrids are small Qwen3.5s,
which have recurrent layers.
"""

from __future__ import annotations

import argparse
import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from akunu_py.machine.backend import find_backend

if TYPE_CHECKING:
    from akunu_py.model.target_model import TargetModel

BUNDLED: Final = Path(__file__).parents[1] / "models" / "ember"
_HYBRID: Final = {
    "model_type": "qwen3_5_text", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
    "vocab_size": 4096, "tie_word_embeddings": True,
}  # fmt: skip
_WIDER: Final = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "109m": {
        "hidden_size": 768,
        "num_hidden_layers": 15,
        "intermediate_size": 2048,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
    },
    "8b": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 32768,
    },
    "hybrid": {"model_type": "qwen3_5", "text_config": _HYBRID},
    "hybrid-30m": {"model_type": "qwen3_5", "text_config": _HYBRID | _WIDER},
}
GROUP_SIZE: Final = 64


def random_target(
    name: str, config: dict[str, Any], bundled: TargetModel, *, fuses: bool = False
) -> TargetModel:
    """A model of an architecture of mlx-lm with random weights and the bundled model's tokenizer;
    it `fuses` layers if it runs as the engine's own models do on a CPU."""
    import mlx.core as mx  # noqa: PLC0415  (after the BLAS, and not for --help)

    from akunu_py.model.cpu import with_fused_layers  # noqa: PLC0415
    from akunu_py.model.target_model import TargetModel  # noqa: PLC0415

    module = import_module(f"mlx_lm.models.{config['model_type']}")
    config = {**config, "vocab_size": bundled.vocabulary_size}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], "vocab_size": config["vocab_size"]}
    mx.random.seed(0)
    original = module.Model(module.ModelArgs.from_dict(config))
    original.eval()
    mx.eval(original.parameters())
    network = with_fused_layers(original) if fuses else original
    return TargetModel(
        network, bundled.tokenizer, config, name=name, layout="dense", original=original
    )


def write_random_model(folder: Path, shape: str, bits: int | None) -> int:
    """Writes the model and returns the number of its parameters.

    They are in float32; if they are quantized, the others are in bfloat16.
    """
    find_backend()
    import mlx.core as mx  # noqa: PLC0415  (after the BLAS, and not for --help)
    from mlx import nn  # noqa: PLC0415
    from mlx.utils import tree_flatten  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    for file in (*BUNDLED.glob("tokenizer*"), *BUNDLED.glob("*.jinja")):
        shutil.copyfile(file, folder / file.name)
    bundled = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    config = {key: value for key, value in bundled.items() if not key.startswith("quantization")}
    config |= SHAPES[shape]
    mx.random.seed(0)
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    parameters: int = sum(weight.size for _, weight in tree_flatten(network.parameters()))
    if bits is not None:
        network.set_dtype(mx.bfloat16)
        nn.quantize(network, GROUP_SIZE, bits)
        config["quantization"] = {"group_size": GROUP_SIZE, "bits": bits}
        config["torch_dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    weights = dict(tree_flatten(network.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="109m")
    parser.add_argument("--bits", type=int, help="quantize the weights to this many bits")
    options = parser.parse_args()
    parameters = write_random_model(options.folder, options.shape, options.bits)
    print(f"{options.folder}: {parameters / 1e6:,.0f} million parameters")


if __name__ == "__main__":
    main()
