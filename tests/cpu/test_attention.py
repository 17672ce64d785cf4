"""The CPU's attention attends as mlx-lm's does."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama, qwen2
from mlx_lm.models.cache import KVCache

from akunu_py.cache.kv_cache import LayerCache
from akunu_py.cpu.attention import CausalMask, FusedAttention, grouped_attention
from tests.tiny_model import CONFIG

HIDDEN = CONFIG["hidden_size"]


def llama_attention() -> nn.Module:
    return llama.Attention(llama.ModelArgs.from_dict(CONFIG))


def qwen2_attention() -> nn.Module:
    layer = qwen2.Attention(qwen2.ModelArgs.from_dict(CONFIG))
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        projection.bias = mx.random.normal(projection.bias.shape)
    return layer


def fused(layer: nn.Module) -> FusedAttention:
    assert FusedAttention.can_replace(layer)
    return FusedAttention(layer, layer.rope, CausalMask())


def normal(*shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape)))


@pytest.mark.parametrize("make", [llama_attention, qwen2_attention])
def test_it_attends_as_the_original_over_prefill_steps_and_drafts(make: Any) -> None:
    original = make()
    own, caches = fused(original), (LayerCache(64), LayerCache(64))
    for count in (20, 1, 5, 1, 17):
        x = normal(1, count, HIDDEN)
        mask = "causal" if count > 1 else None
        expected, computed = original(x, mask, caches[0]), own(x, mask, caches[1])
        assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-5), count
    x = normal(1, 3, HIDDEN)
    assert mx.allclose(own(x, "causal"), original(x, "causal"), rtol=1e-4, atol=1e-5)


def test_the_weights_are_shared() -> None:
    layer = llama_attention()
    before = mx.array(layer.k_proj.weight)
    own = fused(layer)
    rows = own.projections.weight.shape[0]
    assert rows == sum(p.weight.shape[0] for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    assert mx.array_equal(layer.k_proj.weight, before)


def test_other_masks_and_half_precision_are_left_to_the_original() -> None:
    layer = llama_attention()
    own = fused(layer)
    x, window = normal(1, 4, HIDDEN), mx.tri(4, dtype=mx.bool_) & ~mx.tri(4, k=-2, dtype=mx.bool_)
    assert mx.array_equal(own(x, window), layer(x, window))
    layer.set_dtype(mx.float16)
    half = x.astype(mx.float16)
    assert own(half, "causal").dtype == mx.float16
    caches = KVCache(), KVCache()
    assert mx.array_equal(own(half, "causal", caches[0]), layer(half, "causal", caches[1]))


def test_quantized_projections_and_other_layers_stay_as_they_are() -> None:
    layer = llama_attention()
    nn.quantize(layer, group_size=32)
    assert not FusedAttention.can_replace(layer)
    assert not FusedAttention.can_replace(nn.MultiHeadAttention(64, 2))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_heads_share_keys_as_in_the_original(heads: int, kv_heads: int, count: int) -> None:
    queries = 4.0 * normal(2, heads, count, 32)
    keys, values = normal(2, kv_heads, 90, 32), normal(2, kv_heads, 90, 32)
    mask = CausalMask().rows(count, 90)
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask="causal")
    computed = grouped_attention(queries, keys, values, 0.3, mask)
    assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-5)
