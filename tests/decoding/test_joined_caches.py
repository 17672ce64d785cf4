"""Joined caches: they serve as separate ones do, and no answer depends on them."""

from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.base import scaled_dot_product_attention

from akunu_py.cache.batched import BatchedCaches, BatchedRows
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache
from akunu_py.decoding.batch import Batch
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options
from akunu_py.sequence import Sequence
from tests.architectures import make_model
from tests.decoding.company import SMALLEST, joining, member_of, prompt_of, rounds_of
from tests.tiny_model import write_tiny_model

JOINED = [
    {},
    {"num_key_value_heads": 1, "num_attention_heads": 4},
    {"torch_dtype": "bfloat16"},
]


@pytest.mark.parametrize("changes", JOINED, ids=["heads of their own", "shared heads", "bfloat16"])
def test_joined_caches_serve_steps_and_drafts_as_separate_ones(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = write_tiny_model(tmp_path / "joined", **{**SMALLEST, **changes})
    model = load_target(str(folder), find_backend())
    atol = 0.05 if model.is_coarse else 1e-4
    joined, separate = ([model.make_cache(16) for _ in range(3)] for _ in range(2))
    for held in (joined, separate):
        for number, one in enumerate(held):
            model.prefill(prompt_of(1)[: 5 + number], one)
    joined[0].join(joined[1:])
    for counts in ((1, 1, 1), (1, 1, 1), (3, 1, 2), (1, 1, 1), (2, 1)):
        held = joined[: len(counts)]
        rows = [mx.arange(count) + 7 for count in counts]
        assert BatchedRows(counts, held).are_joined is (counts == (1, 1, 1))
        found = model.forward_batch(mx.concatenate(rows), held, counts)
        alone = [model.forward(own, one) for own, one in zip(rows, separate, strict=False)]
        assert mx.allclose(found, mx.concatenate(alone), atol=atol)
        for one in (held[0], separate[0]):
            one.rollback(one.length - counts[0] + 1)
    joined[1].grow(40)
    assert joined[1].group is None
    joined[0].separate()
    for own, other in zip(joined, separate, strict=True):
        for number in range(3):
            token = mx.array([number])
            assert mx.allclose(model.forward(token, own), model.forward(token, other), atol=atol)
    joined[2].rollback(5)
    with pytest.raises(ContextOverflowError):
        model.forward(mx.arange(12), joined[2])


def test_a_window_over_joined_caches_ends_where_it_does_over_each(smallest: TargetModel) -> None:
    caches = [smallest.make_cache(16) for _ in range(3)]
    for number, one in enumerate(caches):
        smallest.prefill(prompt_of(1)[: 4 + number], one)
    kv_heads = caches[0].layers[0].keys.shape[1]
    keys, values = (mx.random.normal((3, kv_heads, 1, 8)) for _ in range(2))
    queries = mx.random.normal((3, 2, 1, 8))
    found = []
    for _ in range(2):
        (layer, *_) = BatchedCaches(caches, [1, 1, 1]).layers
        mask = layer.make_mask(1, window_size=3)
        layer.update_and_fetch(keys, values)
        inputs = queries, keys, values
        found.append(layer.attend(scaled_dot_product_attention, inputs, 0.5, mask))
        for one in caches:
            one.layers[0].rollback(one.length)
        caches[0].join(caches[1:])
    assert mx.allclose(found[0], found[1], atol=1e-5)


def test_steps_together_join_caches_until_a_sequence_leaves(model: TargetModel) -> None:
    batch, members = Batch(model), [member_of(model, number) for number in range(3)]
    caches = [member.target.cache for member in members]
    with joining(after=1):
        rounds_of(batch, members, 3)
        assert all(one.group is caches[0].group is not None for one in caches)
        caches[2].separate()
        rounds_of(batch, members[:2])
        assert all(one.group is caches[0].group is not None for one in caches[:2])
        rounds_of(batch, members[:1])
        caches[1].separate()
        rounds_of(batch, members[:1])
    assert [one.group for one in caches] == [None] * 3


def test_joined_buffers_are_counted_and_stay_for_no_half_of_their_caches(
    model: TargetModel,
) -> None:
    batch, members = Batch(model), [member_of(model, number) for number in (0, 1, 2, 0, 1, 2)]
    caches = [member.target.cache for member in members]
    with joining(after=1):
        rounds_of(batch, members, 3)
        assert caches[0].group is not None
        assert caches[0].group.size == 6
        caches.pop().separate()
        rounds_of(batch, members[:5])
        assert sum(one.nbytes for one in caches) == pytest.approx(held_by(caches), abs=5)
        assert all(one.group is caches[0].group is not None for one in caches)
        for _ in range(2):
            caches.pop().separate()
        rounds_of(batch, members[:3])
    assert [one.group for one in caches] == [None] * 3
    assert sum(one.nbytes for one in caches) == held_by(caches)


def held_by(caches: list[KVCache]) -> int:
    """The bytes of the buffers of some caches."""
    buffers = {layer.held for one in caches for layer in one.layers}
    return sum(held.keys.nbytes + held.values.nbytes for held in buffers)


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_no_memory_to_leave_joined_caches_costs_no_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    requests = [(prompt_of(at), Options(8 * at, drafter="none")) for at in (2, 4, 1, 3)]
    alone, failing = [engine.generate(*request) for request in requests], count()
    separate = LayerCache.separate

    def fail(layer: LayerCache) -> None:
        if layer.held.seats > 1 and next(failing) >= fails_at:
            raise MemoryError
        separate(layer)

    monkeypatch.setattr(LayerCache, "separate", fail)
    with joining(after=1):
        told = engine.generate_batch([Sequence(*request) for request in requests])
    assert next(failing) > fails_at
    assert [one.token_ids for one in told] == [one.token_ids for one in alone]


def test_marks_of_drafts_long_ago_keep_no_states_of_others() -> None:
    model = make_model("qwen3_5")
    caches = [model.make_cache(64) for _ in range(8)]
    for number, one in enumerate(caches):
        model.prefill(prompt_of(1)[: 5 + number], one)

    def forward(*drafting: KVCache) -> int:
        counts = [1 + (one in drafting) for one in caches]
        mx.eval(model.forward_batch(mx.arange(sum(counts)), caches, counts))
        mx.eval([one.checkpoint().states for one in caches])
        mx.synchronize()
        return mx.get_active_memory()

    forward()
    before = forward()
    for one in caches:
        one.mark()
        forward(one)
        after = forward()
    assert after - before < sum(one.nbytes for one in caches)


LATENT = ["deepseek_v3", "glm4_moe_lite", "kimi_linear", "longcat_flash", "bailing_hybrid"]


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_expands_no_context_for_a_few_tokens(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(name)
    cache = model.make_cache(64)
    model.prefill(range(3, 43), cache)
    layer = next(part for part in model.network.modules() if "embed_q" in part)
    expanded, call = list[int](), type(layer.embed_q).__call__

    def counted(self: Any, x: mx.array, transpose: bool = True) -> Any:
        expanded.extend([] if transpose else [x.shape[2]])
        return call(self, x, transpose)

    monkeypatch.setattr(type(layer.embed_q), "__call__", counted)
    rows = mx.arange(5) + 7
    cache.mark()
    found = model.forward(rows, cache)
    assert cache.length == 45
    assert not expanded
    assert cache.rollback(40) == 0
    model.is_latent = False
    assert mx.allclose(found, model.forward(rows, cache), atol=1e-4)
    assert set(expanded) == {45}


def test_other_models_do_not_read_their_keys_for_drafts() -> None:
    names = ["llama", "qwen3_5", "minicpm3", "deepseek_v32", "longcat_flash_ngram"]
    assert not any(make_model(name).is_latent for name in names)
