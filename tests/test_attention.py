"""Attentions in parts: the same logits, whatever the layer; calibration keeps the faster form."""

from itertools import count

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import llama

from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.calibration import forward_times
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.forward_times import ForwardTimes
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.machine.backend import VectorAttention
from akunu_py.model.attention import RowSplit, attending, intercept_attention
from akunu_py.model.target_model import TargetModel
from akunu_py.options import KVQuantization
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from tests.architectures import make_network
from tests.tiny_model import CONFIG

METAL = VectorAttention(rows=8, query_rows=32)
SMALL = VectorAttention(rows=3, query_rows=4)


def tiny_llama() -> nn.Module:
    mx.random.seed(3)
    network = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    mx.eval(network.parameters())
    return network


def ids(rows: int, start: int = 0) -> mx.array:
    return (mx.arange(rows) * 7 + start)[None] % 64


def logits_of(network: nn.Module, split: RowSplit | None, **cached: object) -> list[mx.array]:
    """Of drafts of several lengths after a prompt, to beyond the windows of 8 tokens."""
    cache = make_kv_cache(network, 128, **cached)  # type: ignore[arg-type]
    found = []
    for rows in (4, 1, 5, 9, 6, 1, 9):
        with attending(split):
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


@pytest.mark.parametrize(("sharing", "rows"), [(1, 8), (4, 8), (7, 4), (32, 1), (64, 0)])
def test_the_kernel_serves_fewer_rows_if_many_heads_share_keys(sharing: int, rows: int) -> None:
    assert METAL.most_rows(sharing) == rows


def test_parts_apply_from_the_context_on_where_they_were_faster() -> None:
    split = RowSplit(METAL, {128: 0, 1024: 9, 4096: 17})
    assert not split.applies(5, 128)
    assert split.applies(9, 1024)
    assert not split.applies(10, 2000)
    assert split.applies(17, 100_000)
    assert not RowSplit(METAL).applies(9, 4096)


def test_calibration_measures_both_forms_at_each_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that says that parts are faster from 300 tokens on."""
    model = TargetModel(
        tiny_llama(),
        None,  # type: ignore[arg-type]
        CONFIG,
        name="split",
        layout="dense",
        vector_attention=SMALL,
    )
    split = model.row_split
    assert split is not None
    compute = ForwardTimes.round

    def timed(times: ForwardTimes, size: int) -> float:
        before = split.count
        compute(times, size)
        in_parts = split.count > before
        return 0.002 if in_parts == (times.context < 300) else 0.001

    monkeypatch.setattr(ForwardTimes, "round", timed)
    monkeypatch.setattr(calibration, "load_blas", lambda: None)
    clock = count(step=0.0001).__next__
    monkeypatch.setattr(calibration, "perf_counter", clock)
    monkeypatch.setattr(forward_times, "perf_counter", clock)
    curve = measure_cost_curve(model, budget_s=1.0, contexts=(64, 512))
    assert [(level.context, level.split_rows) for level in curve.levels] == [(64, 0), (512, 33)]
    assert split.applies(9, 600)
    assert not split.applies(9, 400)


def test_a_stored_curve_has_the_choice() -> None:
    curve = CostCurve((CostLevel(128, 0.1, ((1, 0.1),)), CostLevel(1024, 0.1, ((1, 0.1),), 9)))
    assert CostCurve.from_json(curve.as_json()) == curve
