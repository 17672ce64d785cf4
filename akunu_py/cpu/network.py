"""A network with the CPU's layers in the place of mlx-lm's."""

from collections.abc import Hashable, Iterator
from copy import copy
from typing import Any

from mlx import nn
from mlx.utils import tree_unflatten

from akunu_py.cpu.decoder import FusedDecoder
from akunu_py.cpu.rms_norm import FusedRMSNorm
from akunu_py.cpu.rotary import ROTARY_LAYERS, RotaryTable, TableRoPE, settings_of


def with_fused_layers(network: nn.Module) -> nn.Module:
    """A copy of a loaded network, of the same weights, with the layers that are faster here.

    Where weights are joined, those of the network become parts of the joined ones: their values
    stay, and they take no memory of their own.
    """
    fused: nn.Module = _copy_of(network)
    fused.update_modules(tree_unflatten(list(_replacements(network))))
    return fused


def _replacements(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """For each layer that has a faster form, its path and that form; none inside another."""
    forms = _FasterForms()
    outermost = None
    for path, layer in sorted(network.named_modules(), key=lambda item: item[0].split(".")):
        if outermost is not None and path.startswith(f"{outermost}."):
            continue
        form = forms.of(layer)
        if form is not None:
            outermost = path
            yield path, form


class _FasterForms:
    """Makes the faster forms of one network's layers, which share rotary tables."""

    def __init__(self) -> None:
        self._tables: dict[Hashable, RotaryTable] = {}

    def of(self, layer: nn.Module) -> nn.Module | None:
        """The faster form of a layer, or None if there is none."""
        form: nn.Module | None = None
        if type(layer) is nn.RMSNorm:
            form = FusedRMSNorm(layer)
        elif type(layer) in ROTARY_LAYERS and (table := self._table_of(layer)):
            form = TableRoPE(layer, table)
        elif FusedDecoder.can_replace(layer):
            tables = {self._table_of(block.self_attn.rope) for block in layer.layers}
            if len(tables) == 1 and (table := tables.pop()):
                form = FusedDecoder(layer, table)
        return form

    def _table_of(self, rope: nn.Module) -> RotaryTable | None:
        """The angles of a rotary layer; None where a table would not be right."""
        if type(rope) not in ROTARY_LAYERS:
            return None
        table = self._tables.setdefault(settings_of(rope), RotaryTable(rope))
        return table if table.is_right else None


def _copy_of(tree: Any) -> Any:
    """A tree of modules, lists and dictionaries, copied down to its arrays, which are shared."""
    if isinstance(tree, list):
        return [_copy_of(child) for child in tree]
    if not isinstance(tree, dict):
        return tree
    copied = copy(tree)
    dict.update(copied, {name: _copy_of(child) for name, child in tree.items()})
    return copied
