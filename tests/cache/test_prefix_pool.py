"""Which cache serves a prompt, and which ones are dropped."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import WindowLayerCache
from akunu_py.cache.prefix_pool import GROWTH, PrefixPool, PrefixSlot
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_SLOTS, ModelOptions
from akunu_py.tokens import common_prefix_length
from tests.architectures import make_model

NO_LIMIT = 1 << 40
LIMIT = 1024


def make_pool(model: TargetModel, memory: int = NO_LIMIT) -> PrefixPool:
    ticks = count(1)
    return PrefixPool(
        model.make_cache,
        model.cache_bytes,
        limit=LIMIT,
        memory=memory,
        clock=lambda: float(next(ticks)),
    )


def serve(pool: PrefixPool, model: TargetModel, prompt: list[int]) -> tuple[PrefixSlot, int]:
    """Computes a prompt as a request would."""
    slot, cached = pool.take(prompt, len(prompt))
    model.prefill(prompt[cached:], slot.cache)
    pool.settle(slot, prompt)
    return slot, cached


def run(first: int, length: int) -> list[int]:
    return [(first + 7 * i) % 256 for i in range(length)]


def test_a_continued_prompt_stays_in_its_slot(model: TargetModel) -> None:
    pool = make_pool(model)
    prompt = run(1, 40)
    slot, cached = serve(pool, model, prompt)
    assert cached == 0
    assert serve(pool, model, [*prompt, 3, 4]) == (slot, 40)
    assert serve(pool, model, prompt) == (slot, 39), "the last token has to be computed"


def test_a_short_shared_prefix_is_copied_to_another_slot(model: TargetModel) -> None:
    pool = make_pool(model)
    long = run(1, 100)
    slot, _ = serve(pool, model, long)
    other, cached = serve(pool, model, [*long[:30], *run(2, 20)])
    assert other is not slot
    assert cached == 30, "copied, not computed"
    assert serve(pool, model, long) == (slot, 99)


def test_the_least_recently_used_slot_is_dropped(model: TargetModel) -> None:
    pool = make_pool(model)
    prompts = [run(first, 30) for first in range(MAX_SLOTS)]
    for prompt in prompts:
        serve(pool, model, prompt)
    serve(pool, model, prompts[0])
    serve(pool, model, run(100, 30))
    assert len(pool.statuses) == MAX_SLOTS
    assert serve(pool, model, prompts[0])[1] == 29
    assert serve(pool, model, prompts[1])[1] == 0


def test_a_slot_is_rolled_back_if_memory_allows_only_one(model: TargetModel) -> None:
    pool = make_pool(model, memory=1)
    long = run(1, 100)
    slot, _ = serve(pool, model, long)
    assert serve(pool, model, [*long[:30], *run(2, 20)]) == (slot, 30)
    assert serve(pool, model, run(9, 20))[1] == 0
    assert len(pool.statuses) == 1


def test_nothing_is_kept_of_a_request_that_computed_nothing(model: TargetModel) -> None:
    pool = make_pool(model)
    slot, _ = pool.take([1, 2, 3], 3)
    pool.settle(slot, [1, 2, 3])
    assert pool.statuses == ()


def test_statuses_report_what_slots_hold(model: TargetModel) -> None:
    pool = make_pool(model)
    serve(pool, model, run(1, 40))
    serve(pool, model, run(2, 20))
    assert [(s.id, s.tokens, s.last_used) for s in pool.statuses] == [(0, 40, 1.0), (1, 20, 2.0)]
    assert all(status.tokens < status.capacity <= LIMIT for status in pool.statuses)
    assert all(status.nbytes > 0 for status in pool.statuses)
    assert not any(status.busy for status in pool.statuses)
    slot, _ = pool.take(run(1, 41), 41)
    assert [(status.id, status.tokens, status.busy) for status in pool.statuses] == [
        (0, 40, True),
        (1, 20, False),
    ]
    pool.clear()
    assert [status.id for status in pool.statuses] == [0], "it is in use"
    pool.settle(slot, run(1, 41))
    pool.clear()
    assert pool.statuses == ()


def test_a_busy_slot_is_copied_and_neither_taken_nor_dropped(model: TargetModel) -> None:
    pool = make_pool(model)
    prompt = run(1, 40)
    first, _ = pool.take(prompt, 100)
    model.prefill(prompt[:39], first.cache)
    pool.share(first, prompt)
    second, cached = pool.take(prompt, 100)
    assert second is not first
    assert cached == 39
    assert all(status.busy for status in pool.statuses)
    pool.settle(first, prompt[:39])
    pool.settle(second, prompt[:39])
    assert [status.tokens for status in pool.statuses] == [39, 39]


def test_sharing_chunk_after_chunk_reads_each_token_once(model: TargetModel) -> None:
    read = 0

    class Prompt(list[int]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal read
            found = super().__getitem__(key)
            read += len(found)
            return found

    pool, prompt = make_pool(model), Prompt(run(1, 801))
    slot, _ = pool.take(prompt, 900)
    read = 0
    for begin in range(0, 800, 50):
        model.prefill([*prompt][begin : begin + 50], slot.cache)
        pool.share(slot, prompt)
    assert slot.tokens == [*prompt][:800]
    assert read == 800


@pytest.mark.parametrize("window", [0, 32])
def test_nobody_waits_for_a_prefix_that_a_busy_slot_has_gone_past(
    model: TargetModel, window: int
) -> None:
    pool = make_pool(model)
    if window:
        pool._make_cache = lambda capacity: KVCache(
            lambda capacity: [WindowLayerCache(capacity, window) for _ in range(2)], capacity
        )
    prompt, other = run(1, 900), [*run(1, 200), *run(9, 20)]
    slot, _ = pool.take(prompt, 900)
    for begin, end in ((0, 64), (64, 128), (128, 700)):
        model.prefill(prompt[begin:end], slot.cache)
        pool.share(slot, prompt)
    assert pool.known(other) == (0 if window else 200)


def test_memory_for_another_is_there_when_a_busy_slot_leaves_it(model: TargetModel) -> None:
    pool = make_pool(model)
    first, _ = serve(pool, model, run(1, 40))
    (status,) = pool.statuses
    for memory, room in ((status.nbytes, False), (2 * status.nbytes, True)):
        pool.memory = memory
        assert pool.has_room(40), "what is idle can be dropped"
        pool.take(run(1, 40), 40)
        assert pool.has_room(40) is room
        assert pool.has_room(2 * status.capacity, first), "one is always served"
        pool.settle(first, run(1, 40))


def test_a_busy_slot_claims_what_it_has_not_allocated_yet(model: TargetModel) -> None:
    pool = make_pool(model)
    serve(pool, model, run(1, 40))
    pool.memory = pool.statuses[0].nbytes
    slot, _ = pool.take([300], 1)
    assert slot.cache.nbytes == 0
    assert not pool.has_room(1)


def test_caches_are_joined_only_if_there_is_memory_for_the_padding(model: TargetModel) -> None:
    pool = make_pool(model)
    serve(pool, model, run(3, 40))
    slots = [pool.take(prompt, len(prompt))[0] for prompt in (run(1, 40), run(2, 600))]
    caches = [slot.cache for slot in slots]
    for cache in caches:
        model.prefill([1], cache)
    padded = 2 * max(cache.nbytes for cache in caches)
    pool.memory = padded - 1
    assert not pool.may_join(caches)
    assert len(pool.statuses) == 3, "nothing is dropped in vain"
    pool.memory = padded
    assert pool.may_join(caches), "what is idle can be dropped"
    caches[0].join(caches[1:])
    assert sum(cache.nbytes for cache in caches) == padded
    pool.memory = 0
    assert pool.may_join(caches), "they are"


def test_who_leaves_joined_caches_leaves_their_buffers_whole_to_the_others(
    model: TargetModel,
) -> None:
    pool = make_pool(model, memory := int(4.5 * model.cache_bytes(GROWTH)))
    slots = [pool.take(run(100 * number, 2), 2)[0] for number in range(4)]
    for slot in slots:
        model.prefill([1], slot.cache)
    first, second, third, other = (slot.cache for slot in slots)
    assert pool.may_join([first, second, third])
    first.join([second, third])
    assert not pool.has_room(GROWTH + 1, slots[0])
    assert not pool.may_join([first, second, other]), "the third one would keep all three"
    pool.memory = 2 * memory
    assert pool.has_room(GROWTH + 1, slots[0])
    assert pool.may_join([first, second, other])
    pool.grow(slots[0], GROWTH + 1)
    first.join([second, other])
    assert sum(slot.cache.nbytes for slot in slots) <= pool.memory


def test_a_prefix_is_not_kept_besides_its_copy_if_busy_slots_leave_no_memory(
    model: TargetModel,
) -> None:
    pool = make_pool(model, memory := int(3.5 * model.cache_bytes(GROWTH)))
    kept, _ = serve(pool, model, run(9, 2))
    busy = [pool.take(prompt, 1)[0] for prompt in (run(1, 1), run(5, 1))]
    for slot, prompt in zip(busy, (run(1, 1), run(5, 1)), strict=True):
        model.prefill(prompt, slot.cache)
    assert pool.has_room(2)
    slot, cached = pool.take(run(9, 2), 2)
    assert (slot, cached) == (kept, 1)
    assert sum(status.nbytes for status in pool.statuses) <= memory


def test_checkpoints_take_at_most_half_of_their_cache() -> None:
    model = make_model("gemma3_text")
    pool = make_pool(model)
    slot, _ = pool.take(run(1, 1000), 1000)
    for start in range(0, 1000, 20):
        model.prefill(run(1, 1000)[start : start + 20], slot.cache)
        pool.keep(slot)
    pool.settle(slot, run(1, 1000))
    kept = slot.cache.checkpoints
    nbytes = sum(one.nbytes for one in kept)
    assert len(kept) > 2
    assert nbytes <= (slot.cache.nbytes - nbytes) / 2
    assert [one.length for one in kept[-2:]] == [980, 1000]


def test_memory_is_enough_for_what_is_quantized_only_later(tiny_model_dir: Path) -> None:
    options = ModelOptions(
        str(tiny_model_dir), kv_bits=4, kv_group_size=32, quantized_kv_start=LIMIT
    )
    model = load_target(options, find_backend())
    slot, _ = serve(make_pool(model), model, run(1, 40))
    assert model.cache_bytes(slot.cache.capacity) == slot.cache.nbytes
    model = load_target(replace(options, quantized_kv_start=0), find_backend())
    smaller, _ = serve(make_pool(model), model, run(1, 40))
    assert model.cache_bytes(smaller.cache.capacity) == smaller.cache.nbytes < slot.cache.nbytes


prompts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 30), st.integers(0, 3), st.integers(0, 12)),
    max_size=12,
)


@given(asked=prompts, memory=st.sampled_from([1, 600_000 * 3, NO_LIMIT]), data=st.data())
@settings(max_examples=30)
def test_caches_always_hold_what_they_say(
    model: TargetModel,
    asked: list[tuple[int, int, int, int]],
    memory: int,
    data: st.DataObject,
) -> None:
    pool = make_pool(model, memory)
    for first, shared, second, rest in asked:
        prompt = [*run(first, shared), *run(50 + second, rest)]
        slot, cached = pool.take(prompt, len(prompt))
        assert cached == slot.cache.length < len(prompt)
        assert len(slot.tokens) == cached
        done = data.draw(st.integers(cached, len(prompt)))
        model.prefill(prompt[cached:done], slot.cache)
        pool.settle(slot, prompt)
        total = sum(status.nbytes for status in pool.statuses)
        assert total <= memory or len(pool.statuses) == 1


@given(asked=prompts, data=st.data(), seats=st.integers(1, 4))
@settings(max_examples=40)
def test_caches_of_several_requests_hold_what_they_say(
    model: TargetModel, asked: list[tuple[int, int, int, int]], data: st.DataObject, seats: int
) -> None:
    pool = make_pool(model, memory := data.draw(st.sampled_from([1, 600_000 * 3, NO_LIMIT])))
    busy: list[tuple[PrefixSlot, list[int]]] = []
    largest = 0
    for first, shared, second, rest in [*asked, *[(0, 1, 0, 0)] * seats]:
        if len(busy) == seats or (busy and not pool.has_room(60)):
            slot, prompt = busy.pop(data.draw(st.integers(0, len(busy) - 1)))
            assert pool.statuses, "it was not dropped"
            assert slot.cache.length <= len(prompt)
            pool.settle(slot, prompt)
            assert slot.tokens == prompt[: slot.cache.length]
            continue
        prompt = [*run(first, shared), *run(50 + second, rest)]
        slot, cached = pool.take(prompt, len(prompt))
        assert all(slot is not other for other, _ in busy)
        assert cached == slot.cache.length < len(prompt)
        model.prefill(prompt[cached : data.draw(st.integers(cached, len(prompt)))], slot.cache)
        pool.share(slot, prompt)
        busy.append((slot, prompt))
        largest = max(largest, *(status.nbytes for status in pool.statuses))
        assert sum(status.nbytes for status in pool.statuses) <= max(memory, largest)


@given(
    left=st.lists(st.integers(0, 1), max_size=600), right=st.lists(st.integers(0, 1), max_size=600)
)
def test_the_common_prefix_of_any_two(left: list[int], right: list[int]) -> None:
    for one, other in ((left, right), (left, left + right), (left + right, left)):
        length = common_prefix_length(one, other)
        assert one[:length] == other[:length]
        assert length == min(len(one), len(other)) or one[length] != other[length]


def test_a_slot_that_was_dropped_is_not_looked_at_again(model: TargetModel) -> None:
    pool = make_pool(model)
    slot, _ = pool.take(run(1, 9), 9)
    pool.drop(slot)
    slot.cache.advance(3)  # as a forward leaves it that ended between two layers
    pool.settle(slot, run(1, 9))
    assert pool.statuses == ()
    assert slot.tokens == []
