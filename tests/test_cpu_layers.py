"""On a CPU, norms and rotary layers compute the same to the bit; other layers nearly so."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen2
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.rope_utils import Llama3RoPE, YarnRoPE

from akunu_py import Options, load
from akunu_py.cache.layers import LayerCache
from akunu_py.model.cpu import attention as cpu_attention
from akunu_py.model.cpu import with_fused_layers
from akunu_py.model.cpu.attention import (
    FusedAttention,
    RotaryTable,
    TableRoPE,
    causal_mask,
    grouped_attention,
)
from akunu_py.model.cpu.layers import FusedFeedForward, FusedRMSNorm, exponential_of
from tests.tiny_model import CONFIG

HEAD_DIM = 32
HIDDEN = CONFIG["hidden_size"]
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
ROTARY_LAYERS = (
    nn.RoPE(HEAD_DIM, base=10000),
    nn.RoPE(HEAD_DIM, base=500000, scale=0.5),
    Llama3RoPE(HEAD_DIM, 512, base=10000, scaling_config=LLAMA3),
)


def normal(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(sum(shape))).astype(dtype)


@pytest.mark.parametrize("rows", [1, 5, 16, 17])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_a_norm_is_the_same_for_few_rows_and_for_many(rows: int, dtype: mx.Dtype) -> None:
    original = nn.RMSNorm(64, eps=1e-6)
    original.weight = normal(64, dtype=dtype)
    x = normal(1, rows, 64, dtype=dtype)
    assert mx.array_equal(FusedRMSNorm(original)(x), original(x))


@pytest.mark.parametrize("layer", ROTARY_LAYERS, ids=lambda layer: type(layer).__name__)
def test_rotary_layers_rotate_as_before(layer: nn.Module) -> None:
    table = RotaryTable(layer)
    assert table.is_right
    own = TableRoPE(layer, table)
    for offset, count in ((0, 7), (7, 1), (8, 5), (2046, 5), (5000, 1), (8, 5)):
        x = normal(1, 4, count, HEAD_DIM)
        assert mx.array_equal(own(x, offset), layer(x, offset=offset))


def test_rotary_layers_that_a_table_cannot_replace_are_kept() -> None:
    network = nn.Module()
    network.neighbours = nn.RoPE(HEAD_DIM, traditional=True)
    network.scaled = YarnRoPE(HEAD_DIM, max_position_embeddings=64, scaling_factor=4.0)
    fused = with_fused_layers(network)
    assert type(fused.neighbours) is nn.RoPE
    assert type(fused.scaled) is YarnRoPE

    part = nn.RoPE(HEAD_DIM)
    own = TableRoPE(part, RotaryTable(part))
    x = normal(1, 2, 3, 2 * HEAD_DIM)
    assert mx.array_equal(own(x, 4), part(x, offset=4))


def test_half_precision_and_offsets_by_row_are_left_to_the_original() -> None:
    layer = nn.RoPE(HEAD_DIM)
    own = TableRoPE(layer, RotaryTable(layer))
    half = normal(1, 2, 3, HEAD_DIM, dtype=mx.float16)
    assert mx.array_equal(own(half, 4), layer(half, offset=4))
    offsets = mx.array([4, 9])
    x = normal(2, 2, 3, HEAD_DIM)
    assert mx.array_equal(own(x, offsets), layer(x, offset=offsets))


@pytest.mark.parametrize("family", [llama, qwen2])
def test_a_network_predicts_the_same_over_prefill_steps_and_drafts(family: Any) -> None:
    original = family.Model(family.ModelArgs.from_dict(CONFIG))
    fused = with_fused_layers(original)
    kinds = {type(layer) for layer in fused.modules()}
    assert {FusedRMSNorm, FusedAttention, FusedFeedForward} <= kinds
    assert not {nn.RMSNorm, nn.RoPE, family.Attention, family.MLP} & kinds
    layers = CONFIG["num_hidden_layers"]
    assert len(make_prompt_cache(fused)) == layers
    for make_layer_cache in (KVCache, lambda: LayerCache(64)):
        caches = [[make_layer_cache() for _ in range(layers)] for _ in range(2)]
        for count in (20, 1, 1, 5, 1, 17):
            tokens = mx.random.randint(
                0, CONFIG["vocab_size"], (1, count), key=mx.random.key(count)
            )
            computed, expected = fused(tokens, cache=caches[0]), original(tokens, cache=caches[1])
            assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-4), count
    assert fused.model.embed_tokens.weight is original.model.embed_tokens.weight
    assert FusedRMSNorm not in {type(layer) for layer in original.modules()}


def test_other_inputs_than_one_causal_sequence_are_left_to_the_original() -> None:
    original = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    fused = with_fused_layers(original)
    tokens = mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    assert mx.allclose(fused(tokens), original(tokens), rtol=1e-4, atol=1e-4)
    embedded = original.model.embed_tokens(tokens)
    assert mx.allclose(fused(tokens, None, embedded), original(tokens, None, embedded), atol=1e-4)
    windows = [[RotatingKVCache(8) for _ in range(CONFIG["num_hidden_layers"])] for _ in range(2)]
    for part in (tokens[:1], tokens[1:], tokens[:1]):
        computed, expected = fused(part, cache=windows[0]), original(part, cache=windows[1])
        assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-4)


def test_a_network_counts_every_weight_once() -> None:
    original = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    before = sum(array.nbytes for _, array in tree_flatten(original.parameters()))
    fused = with_fused_layers(original)
    for network in (original, fused):
        assert sum(array.nbytes for _, array in tree_flatten(network.parameters())) == before


def test_layers_with_other_settings_have_tables_of_their_own() -> None:
    network = nn.Module()
    network.near, network.far = nn.RoPE(HEAD_DIM, base=10000), nn.RoPE(HEAD_DIM, base=1000000)
    fused = with_fused_layers(network)
    x = normal(1, 1, 2, HEAD_DIM)
    for layer, base in ((fused.near, 10000), (fused.far, 1000000)):
        assert mx.array_equal(layer(x, 9), nn.RoPE(HEAD_DIM, base=base)(x, offset=9))


@pytest.mark.parametrize("half", [True, False])
def test_weights_that_cannot_be_joined_stay_as_they_are(half: bool) -> None:
    original = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    if half:
        original.set_dtype(mx.bfloat16)
    else:
        nn.quantize(original, group_size=32)
    kinds = {type(layer) for layer in with_fused_layers(original).modules()}
    assert {FusedRMSNorm, TableRoPE, llama.Attention, llama.MLP} <= kinds


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize("count", [1, 4, 40])
def test_heads_share_keys_as_in_the_original(heads: int, kv_heads: int, count: int) -> None:
    queries = 4.0 * normal(2, heads, count, 32)
    keys, values = normal(2, kv_heads, 90, 32), normal(2, kv_heads, 90, 32)
    mask = causal_mask(count)
    expected = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask="causal")
    expected = expected.swapaxes(1, 2).reshape(2 * count, -1)
    computed = grouped_attention(queries, keys, values, 0.3, mask)
    assert mx.allclose(computed, expected, rtol=1e-4, atol=1e-5)


exponential = exponential_of(lambda x: x)


@pytest.mark.parametrize("count", [7, 20_000])
def test_the_exponential_is_as_exact_as_mlxs(count: int) -> None:
    x = mx.linspace(-80.0, 80.0, count)
    right = np.exp(np.array(x).astype(np.float64))
    for computed in (mx.exp(x), exponential(x)):
        assert np.abs(np.array(computed) / right - 1).max() < 8e-6
    near = mx.linspace(-1.0, 1.0, count)
    right = np.exp(np.array(near).astype(np.float64))
    assert np.abs(np.array(exponential(near)) / right - 1).max() < 5e-7


def test_results_beyond_float32_are_clamped() -> None:
    x = mx.array([-mx.inf, -1000.0, 0.0, 1000.0] * 1000)
    low, lower, one, high = np.array(exponential(x)[:4])
    assert 0 <= low < 2e-38
    assert 0 <= lower < 2e-38
    assert one == 1.0
    assert 1e38 < high < float("inf")


def test_a_long_prompt_leaves_no_masks_and_is_divided_without_a_change(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(str(tiny_model_dir))
    prompt, options = [at % 250 for at in range(900)], Options(8, drafter="none")
    before = mx.get_active_memory()
    whole = engine.generate(prompt, options).token_ids
    engine.reset()
    assert mx.get_active_memory() - before < 1 << 20
    monkeypatch.setattr(cpu_attention, "_MOST_SCORES", 1)
    assert engine.generate(prompt, options).token_ids == whole
