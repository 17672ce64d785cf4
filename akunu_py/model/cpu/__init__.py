"""A network of mlx-lm with layers for the CPU that compute the same, from the same weights, in
fewer operations: norms and rotary layers of every network, and the dense attentions and
feed-forward blocks of Llama and Qwen2.

On a CPU, MLX runs one operation at a time, and has no kernels for norms, rotary positions and
attention. In a small model, this overhead is most of a forward pass.
"""

from collections.abc import Callable, Hashable, Iterator
from copy import copy
from functools import lru_cache
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten

from akunu_py.model.cpu.attention import (
    ROTARY_LAYERS,
    FusedAttention,
    RotaryTable,
    TableRoPE,
    causal_mask,
    settings_of,
)
from akunu_py.model.cpu.layers import FusedFeedForward, FusedRMSNorm

_MASKS_KEPT: Final = 32
"""More than the sequences of a batched forward pass, or the sizes of drafts."""


def with_fused_layers(network: nn.Module) -> nn.Module:
    """A copy of a loaded network with the faster layers.

    Both share all weights; where weights are joined, those of the network become views.
    """
    fused: nn.Module = _copy_of(network)
    fused.update_modules(tree_unflatten(list(_replacements(network))))
    return fused


def _replacements(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    tables: dict[Hashable, RotaryTable] = {}
    mask = lru_cache(_MASKS_KEPT)(causal_mask)  # all layers of a forward pass need the same
    outermost = None
    for path, layer in sorted(network.named_modules(), key=lambda item: item[0].split(".")):
        if outermost is not None and path.startswith(f"{outermost}."):
            continue
        form = _faster_form(layer, tables, mask)
        if form is not None:
            outermost = path
            yield path, form


def _faster_form(
    layer: nn.Module, tables: dict[Hashable, RotaryTable], mask: Callable[[int], mx.array]
) -> nn.Module | None:
    if type(layer) is nn.RMSNorm:
        return FusedRMSNorm(layer)
    if type(layer) in ROTARY_LAYERS and (table := _table_of(layer, tables)):
        return TableRoPE(layer, table)
    if FusedAttention.can_replace(layer) and (table := _table_of(layer.rope, tables)):
        return FusedAttention(layer, table, mask)
    return FusedFeedForward(layer) if FusedFeedForward.can_replace(layer) else None


def _table_of(rope: nn.Module, tables: dict[Hashable, RotaryTable]) -> RotaryTable | None:
    if type(rope) not in ROTARY_LAYERS:
        return None
    table = tables.setdefault(settings_of(rope), RotaryTable(rope))
    return table if table.is_right else None


def _copy_of(tree: Any) -> Any:
    """A copy of a tree of modules, lists and dictionaries; its arrays are shared."""
    if isinstance(tree, list):
        return [_copy_of(child) for child in tree]
    if not isinstance(tree, dict):
        return tree
    copied = copy(tree)
    dict.update(copied, {name: _copy_of(child) for name, child in tree.items()})
    return copied
