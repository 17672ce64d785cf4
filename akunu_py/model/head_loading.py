"""From the files of a model to its head: found by its tensors, built from its family's layers."""

import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm import utils

from akunu_py.errors import ModelLoadError
from akunu_py.model.files import find_head
from akunu_py.model.head import Body, Head, HeadStep
from akunu_py.model.head_layouts import (
    StoredHead,
    Tensors,
    are_norms_centered,
    find_stored_head,
    is_after_norm,
    is_head_tensor,
    norms_of,
)

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
    """The head, with its weights as they are stored."""
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
    """Quantizes the layers that are stored quantized; bits and group size follow from the
    shapes."""

    def form(path: str, layer: nn.Module) -> bool | dict[str, Any]:
        if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return dict(utils.infer_quant_config(path, layer, weights))

    nn.quantize(step, class_predicate=form)
