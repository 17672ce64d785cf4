"""The preallocated cache: after a rollback it equals a fresh prefill."""

from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache as GrowingCache
from mlx_lm.models.cache import RotatingKVCache

from akunu_py.backend import find_backend
from akunu_py.cache.kv_cache import (
    ForwardOnlyKVCache,
    LayerCache,
    PreallocatedKVCache,
    make_kv_cache,
    no_rollback_reason,
)
from akunu_py.errors import ContextOverflowError
from akunu_py.model import TargetModel, load_target
from tests.tiny_model import write_tiny_model

CAPACITY = 48


def layer_input(tokens: list[int]) -> tuple[mx.array, mx.array]:
    """Keys and values `[1, 2, tokens, 4]` that identify their tokens."""
    keys = mx.broadcast_to(
        mx.array(tokens, dtype=mx.float32)[None, None, :, None], (1, 2, len(tokens), 4)
    )
    return keys, keys + 0.5


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), max_size=20))
def test_any_appends_and_rollbacks_leave_what_fresh_appends_would(
    steps: list[tuple[int, int]],
) -> None:
    cache = PreallocatedKVCache(1, CAPACITY)
    layer, fresh = cache.layers[0], 1
    kept: list[int] = []
    for append, drop in steps:
        if append > CAPACITY - cache.length:
            continue
        tokens = list(range(fresh, fresh + append))
        fresh += append
        kept = [*kept, *tokens]
        keys, values = layer.update_and_fetch(*layer_input(tokens))
        assert keys[0, 0, :, 0].tolist() == kept
        assert values[0, 1, :, 3].tolist() == [token + 0.5 for token in kept]
        cache.rollback(max(0, len(kept) - drop))
        kept = kept[: cache.length]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_model_predicts_after_rollbacks_as_after_a_fresh_prefill(
    data: st.DataObject, tiny_model: TargetModel
) -> None:
    tokens = st.lists(st.integers(0, 255), min_size=1, max_size=7)
    cache = tiny_model.make_cache(CAPACITY)
    assert isinstance(cache, PreallocatedKVCache)
    kept: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        appended = data.draw(tokens)
        if len(appended) > CAPACITY - cache.length:
            break
        logits = tiny_model.forward(mx.array(appended), cache)
        kept = [*kept, *appended]
        mx.eval(logits)
        keep = data.draw(st.integers(1, len(kept)))
        cache.rollback(keep)
        kept = kept[:keep]
    cache.rollback(len(kept) - 1)
    logits = tiny_model.forward(mx.array(kept[-1:]), cache)

    fresh = tiny_model.make_cache(CAPACITY)
    expected = tiny_model.forward(mx.array(kept), fresh)[-1:]
    assert mx.allclose(logits, expected, atol=1e-3), "up to the rounding of other batch sizes"


@pytest.fixture(scope="module")
def tiny_model(tiny_model_dir: Path) -> TargetModel:
    return load_target(str(tiny_model_dir), find_backend())


def test_buffers_are_allocated_once_at_full_capacity() -> None:
    layer = LayerCache(CAPACITY)
    keys, values = layer_input([1, 2, 3])
    layer.update_and_fetch(keys.astype(mx.bfloat16), values.astype(mx.bfloat16))
    assert [buffer.shape for buffer in layer.state] == [(1, 2, CAPACITY, 4)] * 2
    assert {buffer.dtype for buffer in layer.state} == {mx.bfloat16}
    assert layer.nbytes == 2 * 2 * CAPACITY * 4 * 2


def test_writes_do_not_copy_the_buffer() -> None:
    capacity = 1 << 18
    layer = LayerCache(capacity)
    mx.eval(layer.update_and_fetch(*layer_input([1])))
    mx.reset_peak_memory()
    for token in range(20):
        mx.eval(layer.update_and_fetch(*layer_input([token])))
    held = mx.get_active_memory()
    assert layer.nbytes <= held < mx.get_peak_memory() + 1
    assert mx.get_peak_memory() - held < layer.nbytes // 8


def test_growing_keeps_what_is_held() -> None:
    cache = PreallocatedKVCache(1, 4)
    cache.layers[0].update_and_fetch(*layer_input([1, 2, 3, 4]))
    cache.rollback(3)
    cache.grow(6)
    keys, _ = cache.layers[0].update_and_fetch(*layer_input([7, 8]))
    assert keys[0, 1, :, 2].tolist() == [1, 2, 3, 7, 8]
    assert cache.capacity - cache.length == 1
    with pytest.raises(ValueError, match="cannot shrink"):
        cache.grow(5)


def test_skipped_tokens_take_room() -> None:
    cache = PreallocatedKVCache(1, 6)
    cache.layers[0].update_and_fetch(*layer_input([1]))
    cache.skip(3)
    keys, _ = cache.layers[0].update_and_fetch(*layer_input([5]))
    assert keys[0, 1, :, 2].tolist() == [1, 0, 0, 0, 5]
    with pytest.raises(ContextOverflowError, match="2 tokens do not fit into the 1 free places"):
        cache.skip(2)


def test_overflow_is_refused_before_anything_is_written() -> None:
    layer = LayerCache(4)
    layer.update_and_fetch(*layer_input([1, 2, 3]))
    with pytest.raises(ContextOverflowError, match="5 tokens do not fit into a cache made for 4"):
        layer.update_and_fetch(*layer_input([4, 5]))
    assert layer.offset == 3


@pytest.mark.parametrize("to", [-1, 1])
def test_rollback_only_goes_back(to: int) -> None:
    cache = PreallocatedKVCache(2, 8)
    with pytest.raises(ValueError, match="Cannot roll"):
        cache.rollback(to)


class _FakeNetwork:
    def __init__(self, caches: list[object]) -> None:
        self._caches = caches

    def make_cache(self) -> list[object]:
        return self._caches


def test_models_with_rotating_layers_decode_plainly_and_say_so() -> None:
    network = _FakeNetwork([GrowingCache(), RotatingKVCache(max_size=8)])
    cache = make_kv_cache(network, 16)
    assert isinstance(cache, ForwardOnlyKVCache)
    reason = no_rollback_reason(cache)
    assert reason is not None
    assert "RotatingKVCache" in reason
    assert "\n" not in reason


def test_ordinary_models_get_the_preallocated_cache(tmp_path: Path) -> None:
    model = load_target(str(write_tiny_model(tmp_path)), find_backend())
    cache = model.make_cache(64)
    assert isinstance(cache, PreallocatedKVCache)
    assert no_rollback_reason(cache) is None


def test_a_copy_predicts_as_the_original_and_leaves_it_alone(tiny_model: TargetModel) -> None:
    tokens = list(range(40))
    original, copy = tiny_model.make_cache(CAPACITY), tiny_model.make_cache(CAPACITY * 2)
    assert isinstance(original, PreallocatedKVCache)
    assert isinstance(copy, PreallocatedKVCache)
    tiny_model.prefill(tokens, original)
    copy.copy(original, 30)
    tiny_model.prefill([9] * 10, copy)
    original.rollback(30)
    expected = tiny_model.forward(mx.array([7]), original)
    copy.rollback(30)
    assert mx.array_equal(tiny_model.forward(mx.array([7]), copy), expected)


def test_a_copy_needs_what_it_copies_and_room_for_it(tiny_model: TargetModel) -> None:
    original = PreallocatedKVCache(2, CAPACITY)
    with pytest.raises(ValueError, match="0 tokens cannot give 5"):
        PreallocatedKVCache(2, CAPACITY).copy(original, 5)
    cache = tiny_model.make_cache(CAPACITY)
    assert isinstance(cache, PreallocatedKVCache)
    tiny_model.prefill([1] * 20, cache)
    with pytest.raises(ContextOverflowError, match="20 tokens do not fit"):
        PreallocatedKVCache(2, 10).copy(cache, 20)
