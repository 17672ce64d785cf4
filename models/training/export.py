"""Between checkpoints and the folders of models: export, quantizing, means, and further training.

    python -m models.training.export mean BEGIN.pt END.pt --share 0.7
    python -m models.training.export start models/ember --work FOLDER --stage "after code"
    python -m models.training.export quantize FOLDER/full --to models/ember
    python -m models.training.export head FOLDER/head.safetensors --to models/ember

`mean` puts the mean of two checkpoints' weights in place of the second's; `share` is that of its
own. Weights of one origin lie close enough for that, and what one has lost the other still has
(Wortsman et al. 2022, "Model soups"). `start` writes a checkpoint of a finished model at the
beginning of a stage, with a fresh optimizer, from which `python -m models.training --work FOLDER`
goes on. `quantize` and `head` need an interpreter with mlx-lm; the others one with PyTorch.
"""

import argparse
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from models.training.curriculum import CURRICULUM, total_steps
from models.training.examples import EMBER, END_OF_TEXT, SPECIAL_TOKENS, load_tokenizer

TOKENIZER_FILES = (
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
WEIGHT_FILES = ("config.json", "model.safetensors")
MODEL_FILES = (*WEIGHT_FILES, "generation_config.json", *TOKENIZER_FILES)
GROUP_SIZE, BITS = 128, 8
HEAD_FILE = "mtp.safetensors"


def export(work: Path) -> Path:
    """Write the checkpoint as a Hugging Face Llama folder in float32, and return that.

    Nothing in it depends on the machine or the day.
    """
    import torch  # noqa: PLC0415  (quantizing does without)
    from safetensors.torch import save_file  # noqa: PLC0415

    saved = torch.load(work / "checkpoint.pt", weights_only=True, map_location="cpu")
    folder = work / "full"
    folder.mkdir(exist_ok=True)
    weights = {name: tensor.contiguous() for name, tensor in sorted(saved["model"].items())}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    processor = load_tokenizer()
    # No answer has a special token, so one that a confused model writes ends it, too.
    ends = [processor.piece_to_id(token) for token in SPECIAL_TOKENS]
    _write_json(folder / "config.json", _llama_config(saved["shape"], ends))
    settings = {"eos_token_id": ends, "pad_token_id": processor.piece_to_id(END_OF_TEXT)}
    _write_json(folder / "generation_config.json", settings)
    for name in TOKENIZER_FILES:
        shutil.copyfile(EMBER / name, folder / name)
    return folder


def _llama_config(shape: dict[str, Any], ends: list[int]) -> dict[str, Any]:
    """The configuration as `transformers` and mlx-lm read it; an answer stops at any of `ends`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape["vocab_size"],
        "hidden_size": shape["hidden_size"],
        "intermediate_size": shape["intermediate_size"],
        "num_hidden_layers": shape["num_layers"],
        "num_attention_heads": shape["num_heads"],
        "num_key_value_heads": shape["num_kv_heads"],
        "head_dim": shape["hidden_size"] // shape["num_heads"],
        "max_position_embeddings": shape["max_positions"],
        "rope_theta": shape["rope_theta"],
        "rms_norm_eps": shape["rms_norm_eps"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": ends,
        "torch_dtype": "float32",
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def quantize(full: Path, target: Path) -> None:
    """Convert `full` with mlx-lm and put the files of a model into `target`.

    The tokenizer's files and the generation settings are those of `full`, byte for byte: what a
    library writes back depends on its version.
    """
    from mlx_lm import convert  # noqa: PLC0415  (training does without)

    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "quantized"
        sizes = {"q_group_size": GROUP_SIZE, "q_bits": BITS}
        convert(str(full), mlx_path=str(made), quantize=True, dtype="float32", **sizes)
        for name in MODEL_FILES:
            shutil.copyfile((made if name in WEIGHT_FILES else full) / name, target / name)


def quantize_head(full: Path, target: Path) -> None:
    """Write the head that `models.training.head` trained beside the model in `target`."""
    import mlx.core as mx  # noqa: PLC0415  (training does without)

    weights = mx.load(str(full))
    assert isinstance(weights, dict)
    for name in [name for name, values in weights.items() if values.ndim == 2]:
        parts = mx.quantize(weights.pop(name), group_size=GROUP_SIZE, bits=BITS)
        stem = name.removesuffix("weight")
        weights.update(zip((name, f"{stem}scales", f"{stem}biases"), parts, strict=True))
    mx.save_safetensors(str(target / HEAD_FILE), weights, metadata={"format": "mlx"})


def mean(begin: Path, end: Path, share: float) -> None:
    """Replace the weights in the checkpoint `end`, whose optimizers begin anew."""
    import torch  # noqa: PLC0415

    saved = torch.load(end, weights_only=True, map_location="cpu")
    before = torch.load(begin, weights_only=True, map_location="cpu")["model"]
    saved["model"] = {
        name: (1 - share) * before[name] + share * weights
        for name, weights in saved["model"].items()
    }
    torch.save({**saved, "optimizers": {}, "fresh_from": saved["step"]}, end)


def dense_weights(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a folder in float32; quantized ones must have 8 bits."""
    from safetensors.numpy import load_file  # noqa: PLC0415

    stored = load_file(folder / "model.safetensors")
    dense = {}
    for name, values in stored.items():
        stem = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{stem}.scales" in stored:
            scales, biases = (stored[f"{stem}.{part}"][..., None] for part in ("scales", "biases"))
            groups = values.view(np.uint8).reshape(*scales.shape[:-1], -1).astype(np.float32)
            dense[name] = (groups * scales + biases).reshape(len(values), -1)
        else:
            dense[name] = values.astype(np.float32)
    return dense


def start(folder: Path, work: Path, stage: str) -> int:
    """Write the checkpoint; returns the step that the stage begins at."""
    import torch  # noqa: PLC0415

    from models.training.model import Shape  # noqa: PLC0415

    step = total_steps(CURRICULUM[: [one.name for one in CURRICULUM].index(stage)])
    weights = {name: torch.from_numpy(array) for name, array in dense_weights(folder).items()}
    before = {"optimizers": {}, "step": step, "seconds": 0.0, "fresh_from": step}
    work.mkdir(parents=True, exist_ok=True)
    torch.save({"model": weights, "shape": asdict(Shape()), **before}, work / "checkpoint.pt")
    return step


def main() -> None:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    averaging = actions.add_parser("mean")
    averaging.add_argument("begin", type=Path)
    averaging.add_argument("end", type=Path)
    averaging.add_argument("--share", type=float, required=True)
    starting = actions.add_parser("start")
    starting.add_argument("folder", type=Path)
    starting.add_argument("--work", type=Path, required=True)
    starting.add_argument("--stage", required=True, choices=[one.name for one in CURRICULUM])
    quantizing = actions.add_parser("quantize")
    quantizing.add_argument("full", type=Path)
    quantizing.add_argument("--to", type=Path, required=True)
    heading = actions.add_parser("head")
    heading.add_argument("full", type=Path)
    heading.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    if options.action == "mean":
        mean(options.begin, options.end, options.share)
    elif options.action == "start":
        print(f"step {start(options.folder, options.work, options.stage)}")
    elif options.action == "head":
        quantize_head(options.full, options.to)
    else:
        quantize(options.full, options.to)


if __name__ == "__main__":
    main()
