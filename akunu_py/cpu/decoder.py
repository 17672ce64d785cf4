"""The stack of layers of Llama and Qwen2 for the CPU, over the rows of one sequence."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.cpu.attention import CausalMask, FusedAttention, grouped_attention
from akunu_py.cpu.feed_forward import FusedFeedForward
from akunu_py.cpu.rms_norm import FusedRMSNorm
from akunu_py.cpu.rotary import RotaryTable

DECODERS: Final = (llama.LlamaModel, qwen2.Qwen2Model)
"""The stacks that `FusedDecoder` can stand for."""

Stretch = Callable[..., tuple[mx.array, ...]]
"""What lies between two attentions, as a function of arrays alone."""


class FusedLayer(nn.Module):  # type: ignore[misc]
    """One layer, without the attending itself: what lies before it, and what lies behind.

    Args:
        original: the layer.

    Attributes:
        use_sliding: what mlx-lm asks a layer of Llama before it makes a cache.
    """

    use_sliding = False

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.attention_norm = FusedRMSNorm(original.input_layernorm)
        self.attention = FusedAttention(original.self_attn)
        self.feed_forward_norm = FusedRMSNorm(original.post_attention_layernorm)
        self.feed_forward = FusedFeedForward(original.mlp)

    def finish(
        self, x: mx.array, mixed: mx.array, next_norm: FusedRMSNorm
    ) -> tuple[mx.array, mx.array]:
        """What the layer makes of its input rows and of the values that attention mixed.

        Args:
            x: `[count, hidden_size]`, float32.
            mixed: `[count, heads * head_dim]`.
            next_norm: what comes after the layer.

        Returns:
            `[count, hidden_size]`, as it is and normalised.
        """
        x, normed = self.feed_forward_norm.after(x, self.attention.output(mixed))
        return next_norm.after(x, self.feed_forward(normed))


class FusedDecoder(nn.Module):  # type: ignore[misc]
    """A stack of layers, from token ids to what the head sees, in fewer operations.

    Rows of one sequence need no batch; a norm is computed with the sum before it; and for a single
    row, all that lies between one attention and the next is traced once and repeated from then on,
    which saves most of the time that building a graph takes.

    Args:
        original: what it does as well, and does where this does not apply: for several sequences
            at once, without a cache, and under other masks than the causal one.
        table: the angles of its rotary layers.
    """

    def __init__(self, original: nn.Module, table: RotaryTable) -> None:
        super().__init__()
        self.embed_tokens = original.embed_tokens
        self.layers = [FusedLayer(layer) for layer in original.layers]
        self.norm = FusedRMSNorm(original.norm)
        self._table = table
        self._mask = CausalMask()
        self._compute_as_before = original.__call__
        self._stretches = self._make_stretches()
        self._traced = [mx.compile(stretch) for stretch in self._stretches]

    @staticmethod
    def can_replace(stack: nn.Module) -> bool:
        """Whether it is one of these stacks, all of it dense in float32, with full attention."""
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

    def __call__(
        self,
        inputs: mx.array,
        cache: Sequence[Any] | None = None,
        input_embeddings: mx.array | None = None,
    ) -> mx.array:
        """As the original: ids `[batch, count]` to `[batch, count, hidden_size]`."""
        batch, count = inputs.shape
        causal = cache is not None and _is_causal(cache[0], count)
        if batch > 1 or cache is None or not causal or input_embeddings is not None:
            computed: mx.array = self._compute_as_before(inputs, cache, input_embeddings)
            return computed
        angles = self._table.rows(cache[0].offset, count)
        first, *others = self._traced if count == 1 else self._stretches
        x, *projected = first(inputs, *angles)
        for stretch, layer, kept in zip(others, self.layers, cache, strict=True):
            x, *projected = stretch(x, self._attend(layer, projected, kept), *angles)
        return x[None]

    def _make_stretches(self) -> list[Stretch]:
        """What lies before, between and behind the attentions, as functions of arrays alone.

        They take the stream of rows and what attention mixed, or the ids at first, and the angles;
        they return the stream, and the next queries, keys and values; the last one the rows that
        the head sees.
        """

        def first(inputs: mx.array, *angles: mx.array) -> tuple[mx.array, ...]:
            x = self.embed_tokens(inputs.reshape(-1))
            layer = self.layers[0]
            return x, *layer.attention.project(layer.attention_norm(x), *angles)

        def between(layer: FusedLayer, following: FusedLayer) -> Stretch:
            def stretch(x: mx.array, mixed: mx.array, *angles: mx.array) -> tuple[mx.array, ...]:
                x, normed = layer.finish(x, mixed, following.attention_norm)
                return x, *following.attention.project(normed, *angles)

            return stretch

        def last(x: mx.array, mixed: mx.array, *_: mx.array) -> tuple[mx.array, ...]:
            return self.layers[-1].finish(x, mixed, self.norm)[1:]

        return [first, *itertools.starmap(between, itertools.pairwise(self.layers)), last]

    def _attend(self, layer: FusedLayer, projected: Sequence[mx.array], cache: Any) -> mx.array:
        """The values of all rows up to each, mixed; `[count, heads * head_dim]`."""
        queries, keys, values = projected
        keys, values = cache.update_and_fetch(keys, values)
        count, total = queries.shape[2], keys.shape[2]
        mask = None if count == 1 else self._mask.rows(count, total)
        return grouped_attention(queries, keys, values, layer.attention.scale, mask)


def _is_causal(cache: Any, count: int) -> bool:
    """Whether all that a cache holds is seen by rows to come, and it knows how much that is."""
    if not isinstance(cache.offset, int):
        return False
    mask = cache.make_mask(count, return_array=False, window_size=None)
    return mask is None or isinstance(mask, str)
