"""Repeating a recurrence gives the state that the plain recurrence gives."""

from typing import Any
from weakref import ref

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import gated_delta, ssm
from mlx_lm.models.cache import ArraysCache

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.model_cache import Rollback, make_kv_cache
from akunu_py.cache.states import Recording, make_recordable, record
from tests.architectures import make_model, make_network

pytestmark = pytest.mark.usefixtures("without_compiler")
ROWS = 7


class _GatedDelta(nn.Module):  # type: ignore[misc]
    """A layer that is nothing but the recurrence of Qwen3-Next; its cache has the state only."""

    def __call__(self, inputs: dict[str, mx.array], cache: ArraysCache) -> Any:
        out, cache[0] = gated_delta_update(
            *(inputs[name] for name in ("q", "k", "v", "a", "b")),
            mx.zeros(2),
            mx.zeros(2),
            cache[0],
        )
        return out


gated_delta_update = gated_delta.gated_delta_update
"""As mlx-lm's models have it in their modules, where `make_recordable` finds it."""


def random_inputs(rows: int) -> dict[str, mx.array]:
    mx.random.seed(3)
    shapes = {"q": (2, 8), "k": (2, 8), "v": (2, 4), "a": (2,), "b": (2,)}
    return {name: mx.random.normal((1, rows, *shape)) for name, shape in shapes.items()}


def rows_of(inputs: dict[str, mx.array], start: int, stop: int) -> dict[str, mx.array]:
    return {name: given[:, start:stop] for name, given in inputs.items()}


@pytest.mark.parametrize("accepted", range(1, ROWS))
def test_a_repeated_recurrence_is_the_plain_one_to_the_bit(accepted: int) -> None:
    layer, inputs = _GatedDelta(), random_inputs(ROWS)
    make_recordable(layer)
    cache, recording = ArraysCache(1), Recording()
    with record(recording):
        layer(inputs, cache)
    assert recording.is_right([cache], ROWS)
    plain = ArraysCache(1)
    for at in range(accepted):
        layer(rows_of(inputs, at, at + 1), plain)
    repeated = recording.states_after([cache], accepted, ROWS)
    assert repeated is not None
    assert mx.array_equal(repeated[0][0], plain[0])


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_linear", "nemotron_h", "lfm2", "bailing_hybrid"])
def test_a_rejection_leaves_what_a_forward_over_the_accepted_part_leaves(name: str) -> None:
    model = make_model(name)
    network = model.network
    assert model.after_rejection is Rollback.RECURRENCE

    def fed(*forwards: list[int], marked: bool = False) -> KVCache:
        cache = make_kv_cache(network, 64)
        for at, tokens in enumerate(forwards):
            if marked and at == len(forwards) - 1:
                cache.mark()
            with record(cache.recording):
                network(mx.array([tokens]), cache=cache.layers)
            cache.advance(len(tokens))
        return cache

    def following(cache: KVCache) -> mx.array:
        logits: mx.array = network(mx.array([[9, 8]]), cache=cache.layers)
        return logits

    prompt, draft = list(range(1, 20)), list(range(30, 30 + ROWS))
    for accepted in range(1, ROWS):
        cache = fed(prompt, draft, marked=True)
        assert cache.rollback(len(prompt) + accepted) == 0
        expected = following(fed(prompt, draft[:accepted]))
        assert mx.allclose(following(cache), expected, atol=2e-3)


def test_a_recording_ends_with_the_next_rollback() -> None:
    cache = make_kv_cache(make_network("qwen3_next"), 8)
    cache.mark()
    assert cache.recording is not None
    recording = ref(cache.recording)
    cache.advance(2)
    assert recording() is not None
    cache.rollback(0)
    assert recording() is None


def test_what_was_recorded_wrongly_is_not_used() -> None:
    """A family that keeps something else of its convolution computes its tokens again."""
    network = make_network("lfm2")
    make_recordable(network)
    cache = make_kv_cache(network, 64)
    cache.mark()
    with record(cache.recording):
        network(mx.array([[1, 2, 3]]), cache=cache.layers)
    cache.advance(3)
    part = next(part for part in cache.layers if isinstance(part, ArraysCache))
    part[0] = part[0] + 1
    assert cache.rollback(2) == 2


def test_masked_forwards_are_not_recorded() -> None:
    """Rows of a padded batch advance the state by different numbers of tokens."""
    call = ssm.ssm_update
    assert not hasattr(call, "__wrapped__"), "only the models' own names are replaced"
    layer, inputs, recording = _GatedDelta(), random_inputs(3), Recording()
    make_recordable(layer)
    with record(recording):
        gated_delta_update(*inputs.values(), mx.zeros(2), mx.zeros(2), None, mx.ones((1, 3)) > 0)
    assert recording.recurrences == []


def test_a_mark_is_counted_once_the_cache_has_gone_on() -> None:
    model = make_model("qwen3_5")
    cache = model.make_cache(16)
    model.prefill([1, 2, 3], cache)
    before = cache.nbytes
    cache.mark()
    assert cache.nbytes == before, "they are the states that it has anyway"
    mx.eval(model.forward(mx.array([4, 5]), cache))
    assert cache.nbytes == before + cache.checkpoint().nbytes
