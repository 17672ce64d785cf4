"""Forwards from traced operations: the same logits to the bit, and less Python."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama

from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.machine.backend import MOST_ROUND_TOKENS
from akunu_py.options import KVQuantization
from akunu_py.traced import TracedNetwork, traced
from tests.architectures import WINDOW, make_network
from tests.tiny_model import CONFIG

FAMILIES = ("qwen2", "qwen3", "mistral3", "gemma", "gemma3_text", "gpt_oss", "qwen3_moe")
LEFT_ALONE = ("gemma2", "deepseek_v3", "qwen3_5")
"""The first reads its masks, the second computes keys and values from what its caches return, and
the third has recurrent layers."""


class CountingLayer(llama.TransformerBlock):  # type: ignore[misc]
    """A layer that counts how often its Python runs, and may refuse a number of rows."""

    calls = 0
    refused_rows = 0

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        CountingLayer.calls += 1
        if x.shape[1] == self.refused_rows and isinstance(cache.offset, mx.array):
            raise TypeError("An offset must be a number.")
        return super().__call__(x, mask, cache)


class Remembering(llama.TransformerBlock):  # type: ignore[misc]
    """A layer that also uses what it got in the last forward, so no trace can be right."""

    last: mx.array | None = None

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        before, self.last = self.last, x.mean()
        return super().__call__(x if before is None else x + before, mask, cache)


def tiny_llama(layer: type[llama.TransformerBlock] = llama.TransformerBlock) -> nn.Module:
    mx.random.seed(3)
    network = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    for block in network.layers:
        block.__class__ = layer
    mx.eval(network.parameters())
    return network


def ids(rows: int, start: int = 0) -> mx.array:
    return (mx.arange(rows) * 7 + start)[None] % 64


def assert_the_same_logits(network: nn.Module, quantization: KVQuantization | None = None) -> None:
    """Over drafts of several lengths and rollbacks, to beyond the windows."""
    compute = traced(network)
    assert compute is not None
    own, theirs = (make_kv_cache(network, 128, quantization) for _ in range(2))
    network(ids(11), cache=own.layers)
    network(ids(11), cache=theirs.layers)
    own.advance(11)
    theirs.advance(11)
    for start, (rows, rejected) in enumerate([(1, 0), (5, 3), (1, 0), (5, 0), (9, 8), (1, 0)]):
        computed = compute(ids(rows, start), own.layers)
        wanted = network(ids(rows, start), cache=theirs.layers)
        assert mx.array_equal(computed, wanted), (start, rows)
        for cache in (own, theirs):
            cache.advance(rows)
            cache.rollback(cache.length - rejected)
    assert own.length > 2 * WINDOW


@pytest.mark.parametrize("family", FAMILIES)
def test_traced_forwards_compute_the_same_to_the_bit(family: str) -> None:
    assert_the_same_logits(make_network(family))


@pytest.mark.parametrize("form", ["packed", "dequantized"])
def test_so_they_do_with_quantized_caches_and_weights(form: Any) -> None:
    network = tiny_llama()
    nn.quantize(network, 64, 4)
    assert_the_same_logits(network, KVQuantization(8, 32, start=14, form=form))


@pytest.mark.parametrize("family", LEFT_ALONE)
def test_other_networks_are_left_alone(family: str) -> None:
    network = make_network(family)
    assert traced(network) is None
    assert network(ids(3)).shape[1] == 3


def test_a_network_whose_trace_computes_something_else_is_left_alone() -> None:
    assert traced(tiny_llama(Remembering)) is None


def test_the_layers_python_runs_once_for_each_number_of_rows() -> None:
    network = tiny_llama(CountingLayer)
    compute = TracedNetwork(network)
    cache = make_kv_cache(network, 128)
    calls = []
    for rows in (2, 2, 4, 2, 4, MOST_ROUND_TOKENS + 1):
        before = CountingLayer.calls
        compute(ids(rows), cache.layers)
        cache.advance(rows)
        calls.append(CountingLayer.calls - before)
    assert calls[0] > 0
    assert calls == [calls[0], 0, calls[0], 0, 0, len(network.layers)]


def test_a_forward_that_fails_in_the_middle_is_computed_by_the_network() -> None:
    network = tiny_llama(CountingLayer)
    compute = traced(network)
    assert compute is not None
    own, theirs = (make_kv_cache(network, 64) for _ in range(2))
    network.layers[1].refused_rows = 5
    compute = TracedNetwork(network)
    for rows in (2, 5, 2):
        computed = compute(ids(rows), own.layers)
        assert mx.array_equal(computed, network(ids(rows), cache=theirs.layers))
        own.advance(rows)
        theirs.advance(rows)
