"""From the files of a model to its head (MTP, "nextn"): found by the names that each family gives
its tensors, built from the family's layers.

Tensors of a checkpoint come out under one set of names for each step: `embedding_norm`,
`hidden_norm`, `projection`, `norm`, `output` and `layers.N`.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm import utils

from akunu_py.errors import ModelLoadError
from akunu_py.model.files import HEAD_FILES, WEIGHTS, find_head, json_object
from akunu_py.model.head import Body, Head, HeadStep

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
                own = {} if is_model else json_object(folder / "config.json")
                return StoredHead(layout, _in_floats(first), not others, own | settings)
    return None


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    try:
        return mx.load(str(path), return_metadata=True)  # type: ignore[return-value]
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelLoadError(
            f"{path} cannot be read; download it again ({' '.join(str(error).split())})."
        ) from error


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


_CENTERED: Final = re.compile(r"qwen3_next|qwen3_5|step3p5")
"""The families that store their norm weights around zero."""
_EXPERTS: Final = re.compile(r"\.(experts|switch_mlp|moe)\.")
_EXPERT: Final = re.compile(r"(.+)\.experts\.(\d+)\.(\w+\.\w+)")
_LAYER: Final = re.compile(r"layers\.(\d+)\.")
_FULL: Final = "full_attention"
_BY_LAYER: Final = (
    "layer_types", "rope_theta", "partial_rotary_factors", "swiglu_limits", "swiglu_limits_shared",
)  # fmt: skip


def load_head(
    network: nn.Module,
    config: Mapping[str, Any],
    folder: Path,
    asked: str | None,
    finish: Callable[[nn.Module], nn.Module],
) -> Head | None:
    """The head of a loaded network, in the model's folder or another `asked` place, a folder or hub
    name; None if there is none. `finish` brings a step into the form of the network. Raises
    ModelLoadError if it cannot be read, does not fit, or is not in the place that was asked for.
    """
    body, place = Body.of(network), folder
    if body is None:
        if asked is None:
            return None
        raise ModelLoadError("No heads are known for this model's architecture; omit --mtp.")
    if asked is not None:
        place = find_head(asked, partial(is_head_tensor, num_layers=body.num_layers))
    try:
        stored = find_stored_head(place, body.num_layers, is_model=asked is None)
        if stored is not None:
            return _head(network, body, config, stored, finish)
    except ModelLoadError:
        raise
    except Exception as error:  # mlx and mlx-lm raise nearly anything if something does not fit
        reason = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        raise ModelLoadError(f"The head in {place} does not fit the model ({reason}).") from error
    if asked is None:
        return None
    raise ModelLoadError(f"{asked} has no head in a known layout.")


def _head(
    network: nn.Module,
    body: Body,
    config: Mapping[str, Any],
    stored: StoredHead,
    finish: Callable[[nn.Module], nn.Module],
) -> Head:
    layout = stored.layout
    tensors = {name: one for name, one in stored.tensors.items() if not name.startswith("shared.")}
    module = sys.modules[type(network).__module__]
    settings = _settings(config, body.num_layers, tensors)
    family = type(network)(module.ModelArgs.from_dict(settings))
    own = Body.of(family)
    assert own is not None
    norm = body.module[body.norm].weight
    step = HeadStep(
        family,
        own,
        norm.size,
        hidden_first=layout.hidden_first,
        passes_normed=layout.passes_normed,
    )
    if "norm.weight" not in tensors:
        step.pop("norm")
    if "output.weight" in tensors:
        step.output = nn.Linear(norm.size, tensors["output.weight"].shape[0], bias=False)
    is_centered = _CENTERED.match(module.__name__.rpartition(".")[2]) is not None
    shift = 1.0 if is_centered and are_norms_centered(stored) else 0.0
    weights = _sanitized(tensors, family, body.path, shift)
    cast_to = {
        name: one if _is_exact(name, one) else one.astype(norm.dtype)
        for name, one in weights.items()
    }
    _quantize(step, cast_to)
    step.load_weights(list(cast_to.items()))
    step.eval()
    finish(step)
    return Head(
        step,
        network,
        body,
        layout=layout.name,
        after_norm=is_after_norm({"model": config, "head": stored.settings}),
        repeats=stored.is_whole,
    )


def _is_exact(name: str, weight: mx.array) -> bool:
    """Whether a weight must keep its type because it is packed, or a router's bias."""
    return not mx.issubdtype(weight.dtype, mx.floating) or name.endswith("_bias")


def _settings(config: Mapping[str, Any], layer: int, tensors: Tensors) -> dict[str, Any]:
    """The configuration of a network with only the layers of a step. These have full attention, or
    the settings of the layer with that number, and as many experts as are stored."""
    kinds = _kinds(tensors)
    num, has_experts = len(kinds), any(map(_EXPERTS.search, tensors))
    dense = list(range(num))
    own: dict[str, Any] = {
        "num_hidden_layers": num,
        "full_attention_interval": 1,
        "first_k_dense_replace": 0 if has_experts else num,
        "moe_layer_freq": 1,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [] if has_experts else dense,
        "moe_layer_start_index": 0 if has_experts else num,
        "moe_layer_end_index": None,
        "moe_layer_interval": 1,
        "moe_layers_enum": ",".join(map(str, dense)) if has_experts else "",
    }
    if not has_experts:
        own["num_experts"] = 0
    if "layers_block_type" in config or "hybrid_override_pattern" in config:
        own |= {"hybrid_override_pattern": kinds, "layers_block_type": None}
        own["layer_types"] = None

    def changed(settings: Mapping[str, Any]) -> dict[str, Any]:
        return dict(settings) | _of_layer(settings, layer) | own

    settings = changed(config)
    if isinstance(config.get("text_config"), dict):
        settings["text_config"] = changed(config["text_config"])
    return settings


def _of_layer(settings: Mapping[str, Any], layer: int) -> dict[str, Any]:
    """The per-layer settings, reduced to one layer: the one with this number, or one with full
    attention."""
    kinds = settings.get("layer_types") or []
    full = kinds.index(_FULL) if _FULL in kinds else 0
    return {
        name: [settings[name][layer if layer < len(settings[name]) else full]]
        for name in _BY_LAYER
        if isinstance(settings.get(name), list) and settings[name]
    } | ({"layer_types": [_FULL]} if kinds and layer >= len(kinds) else {})


def _kinds(tensors: Tensors) -> list[str]:
    """The kind of each layer of a step, in Nemotron-H's letters."""
    numbers = {int(found[1]) for name in tensors if (found := _LAYER.match(name))}
    return [
        "*"
        if f"layers.{number}.mixer.q_proj.weight" in tensors
        else "E"
        if any(name.startswith(f"layers.{number}.") and _EXPERTS.search(name) for name in tensors)
        else "-"
        for number in sorted(numbers)
    ]


def _sanitized(tensors: Tensors, family: nn.Module, path: str, shift: float) -> Tensors:
    """The tensors under the names of a `HeadStep`, converted by the family's own `sanitize`. Norms
    are shifted here, because families look at other tensors to decide whether to shift them."""
    norms = norms_of(tensors)
    layers = {
        f"{path}.{name}": one
        for name, one in tensors.items()
        if name.startswith("layers.") and name not in norms
    }
    others = {name: one for name, one in tensors.items() if not name.startswith("layers.")}
    if hasattr(family, "sanitize"):
        layers = family.sanitize(layers)
    layers = {name.removeprefix(f"{path}."): one for name, one in _stacked(layers).items()}
    layers |= {name: one for name, one in norms.items() if name.startswith("layers.")}
    named = others | {f"body.{name}": one for name, one in layers.items()}
    if not shift:
        return named
    return {name: one + shift if name in norms_of(named) else one for name, one in named.items()}


def _stacked(tensors: Tensors) -> Tensors:
    """Joins experts that the family's `sanitize` left separate, such as quantized ones."""
    experts: dict[str, dict[int, mx.array]] = {}
    rest = {}
    for name, one in tensors.items():
        if found := _EXPERT.fullmatch(name):
            experts.setdefault(f"{found[1]}.switch_mlp.{found[3]}", {})[int(found[2])] = one
        else:
            rest[name] = one
    return rest | {
        name: mx.stack([parts[number] for number in sorted(parts)])
        for name, parts in experts.items()
    }


def _quantize(step: HeadStep, weights: Tensors) -> None:
    """Bits and group size follow from the shapes."""

    def form(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return dict(utils.infer_quant_config(path, layer, weights))

    nn.quantize(step, class_predicate=form)
