"""The cache: after any appends, rollbacks and checkpoints it equals a fresh prefill."""

from collections.abc import Callable
from typing import Any, NamedTuple

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, CacheList, ChunkedKVCache, RotatingKVCache
from mlx_lm.models.cache import KVCache as GrowingCache

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import ChunkLayerCache, LayerCache, WindowLayerCache
from akunu_py.cache.model_cache import make_kv_cache, no_rollback_reason
from akunu_py.cache.quantized import QuantizedLayerCache
from akunu_py.errors import CacheError, ContextOverflowError
from akunu_py.model.target_model import TargetModel
from akunu_py.options import KVQuantization

CAPACITY = 48
ROOM = 1300  # for the longest history, 12 chunks
WINDOW = 5


def layer_input(tokens: list[int]) -> tuple[mx.array, mx.array]:
    """Keys and values `[1, 2, tokens, 4]` that identify their tokens."""
    keys = mx.broadcast_to(
        mx.array(tokens, dtype=mx.float32)[None, None, :, None], (1, 2, len(tokens), 4)
    )
    return keys, keys + 0.5


class FakeNetwork:
    """Layers of the given kinds that remember what they were fed, as far as each kind does."""

    def __init__(self, *kinds: Callable[[], Any]) -> None:
        self._kinds = kinds

    def make_cache(self) -> list[Any]:
        return [kind() for kind in self._kinds]


def recurrent() -> ArraysCache:
    return ArraysCache(size=2)


KINDS: dict[str, tuple[Callable[[], Any], ...]] = {
    "full": (GrowingCache,),
    "window": (lambda: RotatingKVCache(max_size=WINDOW),),
    "window and beginning": (lambda: RotatingKVCache(max_size=WINDOW, keep=2),),
    "chunks": (lambda: ChunkedKVCache(WINDOW),),
    "recurrent": (recurrent,),
    "hybrid": (recurrent, GrowingCache, lambda: RotatingKVCache(max_size=WINDOW)),
    "lists": (lambda: CacheList(recurrent(), GrowingCache()),),
}


def attention_cache(layers: int, capacity: int) -> KVCache:
    return KVCache(lambda capacity: [LayerCache(capacity) for _ in range(layers)], capacity)


def feed(cache: KVCache, tokens: list[int]) -> list[list[int]]:
    """Appends tokens to all layers; returns what each of them then sees."""
    seen = []
    for layer in cache.layers:
        for part in layer.caches if isinstance(layer, CacheList) else [layer]:
            if isinstance(part, ArraysCache):
                # A state that depends on every token so far, and on their order.
                state = 0 if part[0] is None else part[0].item()
                for token in tokens:
                    state = (state * 31 + token) % 10_007
                part[0], part[1] = mx.array(state), mx.array(tokens[-1])
                seen.append([state])
            else:
                mask = None if isinstance(part, ChunkLayerCache) else part.make_mask(len(tokens))
                keys, _ = part.update_and_fetch(*layer_input(tokens))
                rows = keys[0, 0, :, 0]
                if isinstance(mask, mx.array):  # what the last of the new tokens attends to
                    rows = mx.where(mask[-1], rows, -1)
                seen.append([int(row) for row in rows.tolist() if row >= 0])
    cache.advance(len(tokens))
    return seen


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_any_history_leaves_what_fresh_appends_would(
    kinds: tuple[Callable[[], Any], ...], data: st.DataObject
) -> None:
    network = FakeNetwork(*kinds)
    cache, fresh = make_kv_cache(network, ROOM), 1
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(("append", "chunk", "draft", "rollback", "keep", "copy")))
        if step in ("append", "chunk"):
            count = data.draw(st.integers(1, 4)) if step == "append" else 100
            held = [*held, *range(fresh, fresh + count)]
            fresh += count
            feed(cache, held[-count:])
        elif step == "draft":  # a forward over a draft of which a part is accepted
            count = data.draw(st.integers(2, 6))
            cache.mark()
            drafted = list(range(fresh, fresh + count))
            fresh += count
            feed(cache, drafted)
            accepted = data.draw(st.integers(0, count))
            again = cache.rollback(len(held) + accepted)
            assert again in (0, accepted)
            if again:
                feed(cache, drafted[:accepted])
            held += drafted[:accepted]
        elif step == "rollback":
            to = data.draw(st.integers(0, len(held)))
            reached = cache.reach(to)
            assert cache.rollback(to) == to - reached
            held = held[:reached]
        elif step == "keep":
            cache.keep()
        else:
            to = cache.reach(data.draw(st.integers(0, len(held))))
            copy = make_kv_cache(network, ROOM)
            copy.copy(cache, to)
            feed(copy, [9_999])  # what happens to a copy does not matter to the original
            held, copy = held[:to], make_kv_cache(network, ROOM)
            copy.copy(cache, to)
            cache = copy
        assert cache.length == len(held)
    fed = feed(cache, [7, 8])
    expected_cache = make_kv_cache(network, ROOM)
    if held:
        feed(expected_cache, held)
    assert [row[-WINDOW - 2 :] for row in fed] == [
        row[-WINDOW - 2 :] for row in feed(expected_cache, [7, 8])
    ]


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
def test_every_length_after_a_checkpoint_can_be_reached_in_a_short_way(
    kinds: tuple[Callable[[], Any], ...],
) -> None:
    cache = make_kv_cache(FakeNetwork(*kinds), 700)
    feed(cache, list(range(1, 301)))
    cache.keep()
    feed(cache, list(range(301, 600)))
    assert cache.reach(450) >= 300
    assert cache.rollback(300) == 0
    assert cache.length == 300


def test_windows_hold_the_window_and_a_slack_however_long_the_context() -> None:
    layer = WindowLayerCache(100_000, window=64)
    sizes = set()
    for token in range(2_000):
        layer.update_and_fetch(*layer_input([token]))
        sizes.add(layer.nbytes // (2 * 2 * 4 * 4))
    assert sizes == {64 + 256}
    layer.update_and_fetch(*layer_input(list(range(3_000))))
    layer.update_and_fetch(*layer_input([1]))
    assert layer.nbytes // (2 * 2 * 4 * 4) == 64 + 256


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize("before", [0, 2, 4, 5, 30, 400])
@pytest.mark.parametrize(("keep", "window_size"), [(0, None), (0, 3), (2, None), (2, 3)])
def test_masks_of_windows_show_each_position_its_window(
    tokens: int, before: int, keep: int, window_size: int | None
) -> None:
    layer = WindowLayerCache(1000, WINDOW, keep)
    if before:
        layer.update_and_fetch(*layer_input(list(range(before))))
    mask = layer.make_mask(tokens, window_size=window_size)
    keys, _ = layer.update_and_fetch(*layer_input(list(range(before, before + tokens))))
    positions = [int(key) for key in keys[0, 0, :, 0].tolist()]  # type: ignore[arg-type,union-attr]
    window = window_size or WINDOW
    shown = [
        [key <= at and (key > at - window + keep or key < keep) for key in positions]
        for at in range(before, before + tokens)
    ]
    assert [sum(row) for row in shown] == [
        min(at + 1, window) for at in range(before, before + tokens)
    ]
    if mask is None:
        assert all(shown[0])
        assert tokens == 1
    elif isinstance(mask, str):
        assert shown == [[key <= at for key in positions] for at in range(before, before + tokens)]
    else:
        assert mask.tolist() == shown


@pytest.mark.parametrize("window", [None, 1 << 18])
def test_writes_do_not_copy_the_buffer(window: int | None) -> None:
    capacity = 1 << 18
    layer = WindowLayerCache(capacity, window) if window else LayerCache(capacity)
    mx.eval(layer.update_and_fetch(*layer_input([1])))
    mx.reset_peak_memory()
    for token in range(20):
        mx.eval(layer.update_and_fetch(*layer_input([token])))
    held = mx.get_active_memory()
    assert layer.nbytes <= held < mx.get_peak_memory() + 1
    assert mx.get_peak_memory() - held < layer.nbytes // 8


def test_growing_keeps_what_is_held() -> None:
    cache = attention_cache(1, 4)
    feed(cache, [1, 2, 3, 4])
    cache.rollback(3)
    cache.grow(6)
    assert feed(cache, [7, 8]) == [[1, 2, 3, 7, 8]]
    assert cache.capacity - cache.length == 1


@pytest.mark.parametrize("quantization", [None, KVQuantization(8, 32, 0)])
def test_a_growth_that_fails_changes_nothing(
    quantization: KVQuantization | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second layer gets no memory."""
    kind = QuantizedLayerCache if quantization else LayerCache
    cache = make_kv_cache(FakeNetwork(GrowingCache, GrowingCache, GrowingCache), 4, quantization)
    rows = mx.random.normal((1, 2, 3, 32))
    for layer in cache.layers:
        layer.update_and_fetch(rows, rows)
    cache.advance(3)
    held = [[array.tolist() for array in layer] for layer in cache.rows(0, 3)]
    copy, left = kind.copy, iter(range(1))

    def copy_one(own: LayerCache, other: LayerCache, tokens: int) -> None:
        if next(left, None) is None:
            raise MemoryError
        copy(own, other, tokens)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(kind, "copy", copy_one)
        with pytest.raises(MemoryError):
            cache.grow(40)
    assert (cache.capacity, cache.length) == (4, 3)
    cache.grow(6)
    assert [[array.tolist() for array in layer] for layer in cache.rows(0, 3)] == held
    for layer in cache.layers:
        layer.update_and_fetch(rows, rows)
    cache.advance(3)


def test_skipped_tokens_take_room() -> None:
    cache = attention_cache(1, 6)
    feed(cache, [1])
    cache.skip(3)
    assert feed(cache, [5]) == [[1, 0, 0, 0, 5]]
    with pytest.raises(ContextOverflowError, match="7 tokens do not fit into a cache made for 6"):
        cache.skip(2)


def test_overflow_is_refused_before_anything_is_written() -> None:
    for layer in (LayerCache(4), WindowLayerCache(4, 2)):
        layer.update_and_fetch(*layer_input([1, 2, 3]))
        with pytest.raises(ContextOverflowError, match="5 tokens do not fit into a cache made for"):
            layer.update_and_fetch(*layer_input([4, 5]))
        assert layer.offset == 3


@pytest.mark.parametrize("to", [-1, 1])
def test_rollback_only_goes_back(to: int) -> None:
    cache = attention_cache(2, 8)
    with pytest.raises(ValueError, match="Cannot roll"):
        cache.rollback(to)


def test_layers_that_disagree_are_noticed() -> None:
    cache = attention_cache(2, 8)
    feed(cache, [1, 2])
    cache.layers[0].update_and_fetch(*layer_input([3]))
    with pytest.raises(CacheError, match=r"holds 2 tokens of 3"):
        cache.advance(1)


class _Pair(NamedTuple):
    first: int
    second: int


class _Unknown:
    """A cache with something in it that cannot be copied."""

    held: Any = open  # an object that is neither an array nor a number

    def __init__(self) -> None:
        self.found = self.held


class _Named(_Unknown):
    held = _Pair(1, 2)


@pytest.mark.parametrize("kind", [_Unknown, _Named])
def test_caches_of_unknown_kinds_decode_plainly_and_say_so(kind: type[_Unknown]) -> None:
    cache = make_kv_cache(FakeNetwork(GrowingCache, kind), 16)
    reason = no_rollback_reason(cache)
    assert reason is not None
    assert kind.__name__ in reason
    assert "\n" not in reason
    cache.layers[0].update_and_fetch(*layer_input([1, 2]))
    cache.advance(2)
    first = cache.layers[1]
    assert cache.reach(1) == 0
    assert cache.rollback(1) == 1
    assert cache.layers[1] is not first


def test_a_copy_needs_what_it_copies_and_room_for_it(model: TargetModel) -> None:
    original = attention_cache(2, CAPACITY)
    with pytest.raises(ValueError, match="0 tokens cannot give 5"):
        attention_cache(2, CAPACITY).copy(original, 5)
    cache = model.make_cache(CAPACITY)
    model.prefill([1] * 20, cache)
    with pytest.raises(ContextOverflowError, match="20 tokens do not fit"):
        attention_cache(2, 10).copy(cache, 20)
