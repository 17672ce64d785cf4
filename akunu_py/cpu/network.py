"""A network of mlx-lm with faster layers for the CPU instead of its own.

For Llama and Qwen2 the whole stack of layers is replaced; other networks get faster norms and
rotary layers.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_unflatten
from mlx_lm.models import llama, qwen2

from akunu_py.cpu.attention import CausalMask, FusedAttention, grouped_attention, single_attentions
from akunu_py.cpu.kernels import FusedRMSNorm
from akunu_py.cpu.linear import FusedFeedForward
from akunu_py.cpu.rotary import ROTARY_LAYERS, Angles, RotaryTable, TableRoPE, settings_of

DECODERS: Final = (llama.LlamaModel, qwen2.Qwen2Model)
"""The stacks that `FusedDecoder` can replace."""

_MAX_TRACED_ROWS: Final = 8
"""Batched forwards of more rows are not traced: each number of rows is traced for itself."""

Segment = Callable[..., tuple[mx.array, ...]]
"""The operations between two attentions, as a function of arrays only."""
_Tables = dict[Hashable, RotaryTable]
"""The tables of a network's rotary layers, by the layers' settings."""


def with_fused_layers(network: nn.Module) -> nn.Module:
    """A copy of a loaded network that shares its weights and has the faster layers.

    Where weights are joined, those of the network become views of the joined ones: their values
    stay, and they take no additional memory.
    """
    fused: nn.Module = _copy_of(network)
    fused.update_modules(tree_unflatten(list(_replacements(network))))
    return fused


def _replacements(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The path and the faster form of each outermost layer that has one."""
    tables: _Tables = {}
    outermost = None
    for path, layer in sorted(network.named_modules(), key=lambda item: item[0].split(".")):
        if outermost is not None and path.startswith(f"{outermost}."):
            continue
        form = _faster_form(layer, tables)
        if form is not None:
            outermost = path
            yield path, form


def _faster_form(layer: nn.Module, tables: _Tables) -> nn.Module | None:
    form: nn.Module | None = None
    if type(layer) is nn.RMSNorm:
        form = FusedRMSNorm(layer)
    elif type(layer) in ROTARY_LAYERS and (table := _table_of(layer, tables)):
        form = TableRoPE(layer, table)
    elif FusedDecoder.can_replace(layer):
        shared = {_table_of(block.self_attn.rope, tables) for block in layer.layers}
        if len(shared) == 1 and (table := shared.pop()):
            form = FusedDecoder(layer, table)
    return form


def _table_of(rope: nn.Module, tables: _Tables) -> RotaryTable | None:
    """The angles of a rotary layer; None if a table would not give its results."""
    if type(rope) not in ROTARY_LAYERS:
        return None
    table = tables.setdefault(settings_of(rope), RotaryTable(rope))
    return table if table.is_right else None


class FusedLayer(nn.Module):  # type: ignore[misc]
    """One layer without the attention itself: the parts before it and after it."""

    use_sliding = False  # mlx-lm reads this on layers of Llama before it makes a cache

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.attention_norm = FusedRMSNorm(original.input_layernorm)
        self.attention = FusedAttention(original.self_attn)
        self.feed_forward_norm = FusedRMSNorm(original.post_attention_layernorm)
        self.feed_forward = FusedFeedForward(original.mlp)

    def finish(
        self, x: mx.array, mixed: mx.array, next_norm: FusedRMSNorm
    ) -> tuple[mx.array, mx.array]:
        """The layer's output, as it is and normalised for the next one.

        Takes the layer's input `[count, hidden_size]`, float32, and the output of its attention,
        `[count, heads * head_dim]`.
        """
        x, normed = self.feed_forward_norm.after(x, self.attention.output(mixed))
        return next_norm.after(x, self.feed_forward(normed))


class FusedDecoder(nn.Module):  # type: ignore[misc]
    """A stack of layers, from token ids to the input of the head, in fewer operations.

    The rows of one sequence have no batch axis; a norm is computed with the sum before it; and for
    a single row, the operations between two attentions are traced once and reused, which saves most
    of the time of building a graph. The original computes what this does not cover: several
    sequences together, a forward without a cache, and masks that are not causal.
    """

    def __init__(self, original: nn.Module, table: RotaryTable) -> None:
        super().__init__()
        self.embed_tokens = original.embed_tokens
        self.layers = [FusedLayer(layer) for layer in original.layers]
        self.norm = FusedRMSNorm(original.norm)
        self._table = table
        self._mask = CausalMask()
        self._compute_by_original = original.__call__
        self._segments = self._make_segments()
        self._traced = [mx.compile(segment) for segment in self._segments]

    @staticmethod
    def can_replace(stack: nn.Module) -> bool:
        """Whether a stack is of this kind, all dense in float32, with full attention."""
        return (
            type(stack) in DECODERS
            and getattr(stack, "swa_idx", None) is None
            and type(stack.embed_tokens) is nn.Embedding
            and stack.embed_tokens.weight.dtype == mx.float32
            and all(
                FusedAttention.can_replace(layer.self_attn)
                and FusedFeedForward.can_replace(layer.mlp)
                for layer in stack.layers
            )
        )

    @property
    def pipeline_layers(self) -> list[FusedLayer]:
        """All layers; mlx-lm reads this on the stack of Qwen2 before it makes a cache."""
        layers: list[FusedLayer] = self.layers
        return layers

    def __call__(
        self,
        inputs: mx.array,
        cache: Sequence[Any] | None = None,
        input_embeddings: mx.array | None = None,
    ) -> mx.array:
        """As the original: ids `[batch, count]` to `[batch, count, hidden_size]`."""
        batch, count = inputs.shape
        if cache is not None and hasattr(cache[0], "append_each"):
            return self._compute_batched(inputs, cache)
        causal = cache is not None and _is_causal(cache[0], count)
        if batch > 1 or cache is None or not causal or input_embeddings is not None:
            computed: mx.array = self._compute_by_original(inputs, cache, input_embeddings)
            return computed
        angles = self._table.rows(cache[0].offset, count)
        return self._compute(inputs, cache, angles, self._attend, is_traced=count == 1)[None]

    def _compute_batched(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        """Ids `[rows, 1]` of several sequences, each row at its own position, to their outputs."""
        angles, rows = self._table.rows_at(cache[0].rows.positions), inputs.shape[0]
        is_traced = rows <= _MAX_TRACED_ROWS
        return self._compute(inputs, cache, angles, self._attend_batched, is_traced=is_traced)[
            :, None
        ]

    def _compute(
        self,
        inputs: mx.array,
        cache: Sequence[Any],
        angles: Angles,
        attend: Callable[..., mx.array],
        *,
        is_traced: bool,
    ) -> mx.array:
        """The output `[rows, hidden_size]` for ids of any shape."""
        first, *others = self._traced if is_traced else self._segments
        x, *projected = first(inputs, *angles)
        for segment, layer, kept in zip(others, self.layers, cache, strict=True):
            x, *projected = segment(x, attend(layer, projected, kept), *angles)
        return x

    def _make_segments(self) -> list[Segment]:
        """The operations before, between and after the attentions, as functions of arrays only.

        The first takes the ids and the angles; the others take the rows of the residual stream, the
        output of the attention, and the angles. All return the residual stream and the next
        queries, keys and values, but for the last, which returns the rows for the head.
        """

        def first(inputs: mx.array, *angles: mx.array) -> tuple[mx.array, ...]:
            x = self.embed_tokens(inputs.reshape(-1))
            layer = self.layers[0]
            return x, *layer.attention.project(layer.attention_norm(x), *angles)

        def between(layer: FusedLayer, following: FusedLayer) -> Segment:
            def segment(x: mx.array, mixed: mx.array, *angles: mx.array) -> tuple[mx.array, ...]:
                x, normed = layer.finish(x, mixed, following.attention_norm)
                return x, *following.attention.project(normed, *angles)

            return segment

        def last(x: mx.array, mixed: mx.array, *_: mx.array) -> tuple[mx.array, ...]:
            return self.layers[-1].finish(x, mixed, self.norm)[1:]

        return [first, *itertools.starmap(between, itertools.pairwise(self.layers)), last]

    def _attend(self, layer: FusedLayer, projected: Sequence[mx.array], cache: Any) -> mx.array:
        """The output of the attention, `[count, heads * head_dim]`."""
        queries, keys, values = projected
        keys, values = cache.update_and_fetch(keys, values)
        count, total = queries.shape[2], keys.shape[2]
        mask = None if count == 1 else self._mask.rows(count, total)
        return grouped_attention(queries, keys, values, layer.attention.scale, mask)

    def _attend_batched(
        self, layer: FusedLayer, projected: Sequence[mx.array], cache: Any
    ) -> mx.array:
        """The same for rows of several sequences."""
        queries, keys, values = projected
        held, scale = cache.append_each(keys, values), layer.attention.scale
        if queries.shape[2] == len(held):
            return single_attentions(queries, held, scale)
        outputs = []
        for rows, (keys, values) in zip(cache.rows.split(queries, 2), held, strict=True):
            count = rows.shape[2]
            mask = None if count == 1 else self._mask.rows(count, keys.shape[2])
            outputs.append(grouped_attention(rows, keys, values, scale, mask))
        return mx.concatenate(outputs)


def _is_causal(cache: Any, count: int) -> bool:
    """Whether new rows see all that a cache holds, and the cache knows its length."""
    if not isinstance(cache.offset, int):
        return False
    mask = cache.make_mask(count, return_array=False, window_size=None)
    return mask is None or isinstance(mask, str)


def _copy_of(tree: Any) -> Any:
    """A copy of a tree of modules, lists and dictionaries; its arrays are shared."""
    if isinstance(tree, list):
        return [_copy_of(child) for child in tree]
    if not isinstance(tree, dict):
        return tree
    copied = copy(tree)
    dict.update(copied, {name: _copy_of(child) for name, child in tree.items()})
    return copied
