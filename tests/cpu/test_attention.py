"""The CPU's attention attends as mlx-lm's does."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama, qwen2

from akunu_py.model.cpu.attention import CausalMask, FusedAttention, grouped_attention
from akunu_py.model.cpu.rotary import RotaryTable
from tests.tiny_model import CONFIG

HIDDEN = CONFIG["hidden_size"]


def llama_attention() -> nn.Module:
    return llama.Attention(llama.ModelArgs.from_dict(CONFIG))


def qwen2_attention() -> nn.Module:
    layer = qwen2.Attention(qwen2.ModelArgs.from_dict(CONFIG))
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        projection.bias = mx.random.normal(projection.bias.shape)
    return layer


def normal(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


@pytest.mark.parametrize("make", [llama_attention, qwen2_attention])
def test_queries_keys_and_values_are_those_of_the_original(make: Any) -> None:
    original = make()
    assert FusedAttention.can_replace(original)
    table = RotaryTable(original.rope)
    for offset, count in ((0, 20), (20, 1), (21, 5)):
        x = normal(count, HIDDEN)
        projected = FusedAttention(original, table, CausalMask()).project(
            x, *table.rows(range(offset, offset + count))
        )
        layers = original.q_proj, original.k_proj, original.v_proj
        heads = original.n_heads, original.n_kv_heads, original.n_kv_heads
        for computed, layer, number, turns in zip(
            projected, layers, heads, (True, True, False), strict=True
        ):
            expected = layer(x).reshape(1, count, number, -1).swapaxes(1, 2)
            expected = original.rope(expected, offset=offset) if turns else expected
            assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-5), (offset, count)


def test_the_weights_are_shared() -> None:
    layer = llama_attention()
    before = mx.array(layer.k_proj.weight)
    own = FusedAttention(layer, RotaryTable(layer.rope), CausalMask())
    outputs = own.projections.matrix.shape[1]
    assert outputs == sum(p.weight.shape[0] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert mx.array_equal(layer.k_proj.weight, before)


def test_other_weights_and_other_layers_stay_as_they_are() -> None:
    half = llama_attention()
    half.set_dtype(mx.float16)
    assert not FusedAttention.can_replace(half)
    quantized = llama_attention()
    nn.quantize(quantized, group_size=32)
    assert not FusedAttention.can_replace(quantized)
    assert not FusedAttention.can_replace(nn.MultiHeadAttention(64, 2))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_heads_share_keys_as_in_the_original(heads: int, kv_heads: int, count: int) -> None:
    queries = 4.0 * normal(2, heads, count, 32)
    keys, values = normal(2, kv_heads, 90, 32), normal(2, kv_heads, 90, 32)
    mask = CausalMask().rows(count, 90)
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask="causal")
    expected = expected.swapaxes(1, 2).reshape(2 * count, -1)
    computed = grouped_attention(queries, keys, values, 0.3, mask)
    assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-5)
