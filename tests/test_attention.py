"""Other ways for few rows: the same logits, whatever the layer; calibration keeps the fastest."""

from functools import partial
from itertools import count
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx import nn

from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.calibration import forward_times
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.forward_times import ForwardTimes, faster_in_parts
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.machine.backend import MOST_ROUND_TOKENS, Backend, VectorAttention
from akunu_py.model.attention import (
    FewRows,
    RowSplit,
    TwoProducts,
    attending,
    few_rows_of,
    intercept_attention,
)
from akunu_py.model.target_model import TargetModel
from akunu_py.options import KVQuantization
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.traced import TracedNetwork
from tests.architectures import make_network
from tests.test_traced import ids, tiny_llama
from tests.tiny_model import CONFIG

METAL = VectorAttention(rows=8, query_rows=32)
SMALL = VectorAttention(rows=3, query_rows=4)


def logits_of(network: nn.Module, way: FewRows | None, **cached: object) -> list[mx.array]:
    """Of drafts of several lengths after a prompt, to beyond the windows of 8 tokens."""
    cache = make_kv_cache(network, 128, **cached)  # type: ignore[arg-type]
    found = []
    for rows in (4, 1, 5, 9, 6, 1, 9):
        with attending(way):
            found.append(network(ids(rows, rows), cache=cache.layers))
        cache.advance(rows)
    return found


@pytest.mark.parametrize(
    ("family", "cached"),
    [
        ("llama", {}),
        ("gemma3_text", {}),  # windows, whose masks are arrays
        ("gpt_oss", {}),  # windows and attention sinks
        ("llama4", {}),  # chunks
        ("deepseek_v3", {}),  # multi-head latent attention
        ("qwen3_5", {}),  # recurrent layers between
        ("llama", {"max_size": 16}),  # a bounded cache
        ("tiny", {"quantization": KVQuantization(8, 32, start=6, form="dequantized")}),
    ],
)
def test_parts_give_the_same_logits(family: str, cached: dict[str, object]) -> None:
    network = tiny_llama() if family == "tiny" else make_network(family)
    intercept_attention(network)
    split = RowSplit(SMALL)
    whole, parts = (logits_of(network, form, **cached) for form in (None, split))
    assert split.count
    for one, other in zip(whole, parts, strict=True):
        assert mx.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_packed_keys_are_read_at_once() -> None:
    network = tiny_llama()
    intercept_attention(network)
    split = RowSplit(SMALL)
    logits_of(network, split, quantization=KVQuantization(8, 32, start=0, form="packed"))
    assert not split.count


def test_traced_forwards_compute_parts_too() -> None:
    network = tiny_llama()
    compute, split = TracedNetwork(network), RowSplit(SMALL)
    own, theirs = (make_kv_cache(network, 32) for _ in range(2))
    with attending(split):
        computed = compute(ids(7), own.layers)
    assert split.count
    assert mx.allclose(computed, network(ids(7), cache=theirs.layers), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("sharing", "rows"), [(1, 8), (4, 8), (7, 4), (32, 1), (64, 0)])
def test_the_kernel_serves_fewer_rows_if_many_heads_share_keys(sharing: int, rows: int) -> None:
    assert METAL.most_rows(sharing) == rows


def test_each_machine_has_its_own_way() -> None:
    assert few_rows_of(Backend("metal", "M4")) == RowSplit(METAL)
    assert isinstance(few_rows_of(Backend("cuda", "H200")), TwoProducts)
    assert few_rows_of(Backend("cpu", "x")) is None


ROWS, TOTAL = 5, 12
SEEN = mx.arange(TOTAL) <= mx.arange(TOTAL - ROWS, TOTAL)[:, None]


@pytest.mark.parametrize("mask", [None, "causal", SEEN, mx.where(SEEN, 0.0, -1e9), SEEN[:1]])
def test_two_products_are_the_attention(mask: Any) -> None:
    draw = partial(mx.random.normal, key=mx.random.key(1))
    queries, keys, values = draw((2, 6, ROWS, 16)), draw((2, 2, TOTAL, 16)), draw((2, 2, TOTAL, 8))
    exact = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask)

    def never(*_: object, **__: object) -> mx.array:
        pytest.fail("it computes the attention itself")

    q, k, v = (one.astype(mx.bfloat16) for one in (queries, keys, values))
    found = TwoProducts().attend(never, (q, k, v), scale=0.3, mask=mask)
    assert found.dtype == mx.bfloat16
    assert found.shape == exact.shape
    assert mx.allclose(found.astype(mx.float32), exact, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3", "minicpm3"])
def test_networks_are_as_exact_with_them(family: str) -> None:
    network = make_network(family)
    network.set_dtype(mx.bfloat16)
    intercept_attention(network)
    usual, found = (logits_of(network, way) for way in (None, TwoProducts()))
    network.set_dtype(mx.float32)  # the same weights
    exact = logits_of(network, None)

    def error(logits: list[mx.array]) -> float:
        apart = [mx.abs(one - other).mean() for one, other in zip(logits, exact, strict=True)]
        return cast(float, mx.stack(apart).sum().item())

    assert 0.0 < error(found) < 1.05 * error(usual)


def test_two_products_are_for_rounds_alone() -> None:
    way = TwoProducts()
    counts = [rows for rows in range(1, 100) if way.applies(rows, 1000)]
    assert counts == list(range(2, MOST_ROUND_TOKENS + 1))
    one_row = mx.ones((1, 2, 1, 8), mx.bfloat16)  # as a sequence of a batch may have
    assert way.attend(lambda *_, **__: mx.array(7), (one_row, one_row, one_row), scale=1.0) == 7
    network = tiny_llama()  # in float32, it is left to MLX
    intercept_attention(network)
    for one, other in zip(logits_of(network, None), logits_of(network, way), strict=True):
        assert mx.array_equal(one, other)


def test_parts_apply_from_the_context_on_where_they_were_faster() -> None:
    split = RowSplit(METAL, {128: 0, 1024: 9, 4096: 17})
    assert not split.applies(5, 128)
    assert split.applies(9, 1024)
    assert not split.applies(10, 2000)
    assert split.applies(17, 100_000)
    assert not RowSplit(METAL).applies(9, 4096)


def clock(whole: dict[int, float], parts: dict[int, float]) -> tuple[list[int], object]:
    tried: list[int] = []

    def seconds(size: int, in_parts: bool) -> float:
        tried.append(size)
        return (parts if in_parts else whole)[size]

    return tried, seconds


def test_the_faster_form_is_kept_as_far_as_it_is_faster() -> None:
    sizes = (5, 9, 17, 33)
    never = dict.fromkeys(sizes, 1.0)
    growing = {5: 0.5, 9: 0.7, 17: 1.2, 33: 0.1}
    tried, seconds = clock(never, growing)
    assert faster_in_parts(seconds, sizes, float("inf")) == 9  # type: ignore[arg-type]
    assert 33 not in tried
    _, seconds = clock(growing, never)
    assert faster_in_parts(seconds, (5, 9), float("inf")) == 0  # type: ignore[arg-type]
    _, seconds = clock(never, dict.fromkeys(sizes, 0.97))
    assert faster_in_parts(seconds, sizes, float("inf")) == 0  # type: ignore[arg-type]


def test_calibration_measures_both_forms_at_each_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that says that parts are faster from 300 tokens on."""
    model = TargetModel(
        tiny_llama(),
        None,  # type: ignore[arg-type]
        CONFIG,
        name="split",
        layout="dense",
        few_rows=RowSplit(SMALL),
    )
    split = model.row_split
    assert split is not None
    compute = ForwardTimes._round

    def timed(times: ForwardTimes, size: int) -> float:
        before = split.count
        compute(times, size)
        in_parts = split.count > before
        return 0.002 if in_parts == (times._context < 300) else 0.001

    monkeypatch.setattr(ForwardTimes, "_round", timed)
    monkeypatch.setattr(calibration, "load_blas", lambda: None)
    clock = count(step=0.001).__next__
    monkeypatch.setattr(calibration, "perf_counter", clock)
    monkeypatch.setattr(forward_times, "perf_counter", clock)
    curve = measure_cost_curve(model, budget_s=1.0, contexts=(64, 512))
    assert [(level.context, level.split_rows) for level in curve.levels] == [(64, 0), (512, 33)]
    assert split.applies(9, 600)
    assert not split.applies(9, 400)


def test_a_stored_curve_has_the_choice() -> None:
    curve = CostCurve((CostLevel(128, 0.1, ((1, 0.1),)), CostLevel(1024, 0.1, ((1, 0.1),), 9)))
    assert CostCurve.from_json(curve.as_json()) == curve
