"""How each family names the tensors of a head (MTP, "nextn"), and where they are.

Tensors of a checkpoint go in; those of each step of a head come out, under one set of names:
`embedding_norm`, `hidden_norm`, `projection`, `norm`, `output` and `layers.N`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from akunu_py.errors import ModelLoadError
from akunu_py.model.files import HEAD_FILES, WEIGHTS

_FP8_BLOCK: Final = 128
_BETWEEN: Final = 0.5
"""The border between norm weights around zero and norm weights around one."""
_FP8_SCALE: Final = ".weight_scale_inv"

Tensors = dict[str, mx.array]


_PARTS: Final = ("embedding_norm", "hidden_norm", "projection", "norm", "output", "shared")


@dataclass(frozen=True, kw_only=True)
class HeadLayout:
    """How a family names and joins the parts of a head. Names are regular expressions: a group in
    `prefix` is the step, one in `layers` a layer's number, which continues the model's if
    `after_layers`. The projection may take the `hidden_first`, before the embedding;
    `passes_normed`: the next step takes a step's state after the last norm.
    """

    name: str
    prefix: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str | None = None
    output: str | None = None
    shared: str | None = None
    layers: str = ""
    hidden_first: bool = False
    passes_normed: bool = True
    after_layers: bool = False

    def place(self, name: str, num_layers: int) -> tuple[int, str] | None:
        """The step of a tensor, and its name here; None if it does not belong to the head."""
        begin = re.match(self.prefix, name)
        if begin is None:
            return None
        step = int(begin[1]) - (num_layers if self.after_layers else 0) if begin.re.groups else 0
        rest = name[begin.end() :]
        if step < 0:
            return None
        for part in _PARTS:
            spelled = getattr(self, part)
            if spelled and (found := re.match(rf"(?:{spelled})\.", rest)):
                return step, f"{part}.{rest[found.end() :]}"
        if found := re.match(self.layers, rest):
            return step, f"layers.{found[1] if found.re.groups else 0}.{rest[found.end() :]}"
        return None


# fmt: off
LAYOUTS: Final = (
    HeadLayout(
        name="Qwen's", prefix=r"(?:[\w.]+\.)?mtp\.|(?=(?:fc|norm|layers|pre_fc_norm_\w+)\.)",
        embedding_norm="pre_fc_norm_embedding", hidden_norm="pre_fc_norm_hidden", projection="fc",
        norm="norm", layers=r"layers\.(\d+)\.",
    ),
    HeadLayout(
        name="DeepSeek's",
        prefix=r"(?:model\.|language_model\.)*layers\.(\d+)\.(?:transformer\.)?",
        embedding_norm="enorm", hidden_norm="hnorm", projection="eh_proj",
        norm=r"shared_head\.norm", output=r"shared_head\.output",
        shared=r"shared_head\.head|embed_tokens", passes_normed=False, after_layers=True,
    ),
    HeadLayout(
        name="MiMo's", prefix=r"model\.mtp_layers\.(\d+)\.", embedding_norm="token_layernorm",
        hidden_norm="hidden_layernorm", projection="input_proj", norm="final_layernorm",
        hidden_first=True,
    ),
    HeadLayout(
        name="Ernie's", prefix=r"model\.mtp_(?=\w+\.(\d+)\.)", embedding_norm=r"emb_norm\.\d+",
        hidden_norm=r"hidden_norm\.\d+", projection=r"linear_proj\.\d+", layers=r"block\.\d+\.",
    ),
    HeadLayout(
        name="Nemotron-H's", prefix=r"(?:[\w.]+\.)?mtp\.", embedding_norm=r"layers\.0\.enorm",
        hidden_norm=r"layers\.0\.hnorm", projection=r"layers\.0\.eh_proj",
        norm=r"layers\.\d+\.final_layernorm", layers=r"layers\.(\d+)\.",
    ),
)
# fmt: on


@dataclass(frozen=True)
class StoredHead:
    """The stored tensors of a head's first step, the only one if it `is_whole`. `settings` are the
    metadata of its file and its own `config.json`.
    """

    layout: HeadLayout
    tensors: Tensors
    is_whole: bool
    settings: Mapping[str, Any]


def is_head_tensor(name: str, num_layers: int) -> bool:
    """Whether a tensor of a whole checkpoint may belong to a head."""
    return any(layout.place(name, num_layers) for layout in LAYOUTS)


def find_stored_head(folder: Path, num_layers: int, *, is_model: bool) -> StoredHead | None:
    """The head in the shards or a side file of a model's folder, or in any file of another folder.
    Raises ModelLoadError if a file cannot be read, or a head has parts of an unknown layout.
    """
    shards = sorted(folder.glob(WEIGHTS if is_model else "*.safetensors"))
    sides = [path for name in HEAD_FILES if (path := folder / name).is_file()]
    for paths in (shards, *([path] for path in sides)):
        tensors, settings = Tensors(), dict[str, Any]()
        for path in paths:
            stored, metadata = _read(path)
            tensors |= stored
            settings |= metadata
        for layout in LAYOUTS:
            first, *others = _steps(layout, tensors, num_layers) or [Tensors()]
            if "projection.weight" in first:
                own = {} if is_model else _config_of(folder)
                return StoredHead(layout, _in_floats(first), not others, own | settings)
    return None


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    try:
        return mx.load(str(path), return_metadata=True)  # type: ignore[return-value]
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"{path} cannot be read; download it again ({' '.join(str(error).split())})."
        ) from error


def _config_of(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _steps(layout: HeadLayout, tensors: Tensors, num_layers: int) -> list[Tensors]:
    found: dict[int, Tensors] = {}
    for name, tensor in tensors.items():
        if place := layout.place(name, num_layers):
            step, part = place
            found.setdefault(step, {})[part] = tensor
    return [found[step] for step in sorted(found)]


def _in_floats(tensors: Tensors) -> Tensors:
    """The tensors, with blockwise FP8 ones dequantized, as in mlx-lm."""
    plain = {name: one for name, one in tensors.items() if not name.endswith(_FP8_SCALE)}
    for name in tensors.keys() - plain.keys():
        weight = name.removesuffix("_scale_inv")
        plain[weight] = _from_blocks(tensors[weight], tensors[name])
    return plain


def _from_blocks(weight: mx.array, scales: mx.array) -> mx.array:
    rows, columns = weight.shape
    every_row, every_column = (mx.arange(size) // _FP8_BLOCK for size in (rows, columns))
    by_block = scales[every_row][:, every_column]
    return (mx.from_fp8(weight, dtype=mx.bfloat16) * by_block).astype(mx.bfloat16)


def is_after_norm(settings: Mapping[str, Any]) -> bool:
    """Whether a head takes the model's hidden states after the last norm, as most do."""
    asked = _entries(settings, ("mtp_hidden_state_mode", "base_hidden_variant"))
    return not any(str(mode).startswith("pre") for mode in asked)


def are_norms_centered(stored: StoredHead) -> bool:
    """Whether a head stores its norm weights around zero, as its family does."""
    formats = _entries(stored.settings, ("rmsnorm_weight_format",))
    if "mlx_gamma" in formats:
        return False
    means = [mx.mean(one) for one in norms_of(stored.tensors).values()]
    return bool(mx.mean(mx.stack(means)) < _BETWEEN)


def norms_of(tensors: Tensors) -> Tensors:
    """The weights of norms, under the names of this file."""
    return {
        name: one for name, one in tensors.items() if one.ndim == 1 and name.endswith("norm.weight")
    }


def _entries(settings: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[Any]:
    for name, value in settings.items():
        if name in names:
            yield value
        elif isinstance(value, dict):
            yield from _entries(value, names)
