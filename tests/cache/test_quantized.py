"""Quantized keys and values: what mlx-lm's quantized cache holds, and the same text with drafts."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any, get_args

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache as GrowingCache
from mlx_lm.models.cache import QuantizedKVCache

import akunu_py
from akunu_py.cache import prompt_store
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.quantized import QuantizedLayerCache
from akunu_py.calibration.measure import CONTEXTS, contexts_of, cost_key
from akunu_py.decoding.loop import Limits
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import fit_kv_quantization, load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import (
    DEFAULT_KV_GROUP_SIZE,
    DEFAULT_QUANTIZED_KV_START,
    KVForm,
    KVQuantization,
    ModelOptions,
    Options,
    Sampling,
)
from akunu_py.planning.row_class import BLOCK_ROWS
from akunu_py.sampling.sampler import Sampler
from tests.architectures import make_network
from tests.fakes import OracleDrafter, rounds_of

CAPACITY = 40
FORMS: tuple[KVForm, ...] = get_args(KVForm)
HEAD = 32


def keys_and_values(tokens: list[int]) -> tuple[mx.array, mx.array]:
    """Keys and values `[1, 2, tokens, 32]` that depend on their tokens alone."""
    rows = [mx.random.normal((1, 2, 1, 2 * HEAD), key=mx.random.key(token)) for token in tokens]
    keys, values = mx.split(mx.concatenate(rows, axis=2), 2, axis=-1)
    return keys, values


def mlx_lm_holds(tokens: list[int], quantization: KVQuantization) -> list[mx.array]:
    """What mlx-lm's caches hold of the tokens, if they are quantized at the same length."""
    size, bits, start = quantization.group_size, quantization.bits, quantization.start
    full = GrowingCache()
    if start:
        full.update_and_fetch(*keys_and_values(tokens[:start]))
    cache = full.to_quantized(size, bits) if start else QuantizedKVCache(size, bits)
    keys, values = cache.update_and_fetch(*keys_and_values(tokens[start:]))
    return [*keys, *values]


@settings(max_examples=60)
@given(data=st.data())
def test_any_history_leaves_what_mlx_lms_cache_would_hold(data: st.DataObject) -> None:
    form: KVForm = data.draw(st.sampled_from(FORMS))
    start = data.draw(st.sampled_from((0, 1, 7)))
    quantization = KVQuantization(data.draw(st.sampled_from((4, 8))), 32, start, form)
    layer = QuantizedLayerCache(12, quantization)
    held: list[int] = []
    fresh = 0
    for _ in range(data.draw(st.integers(1, 10))):
        step = data.draw(st.sampled_from(("append", "append", "rollback", "grow", "copy")))
        if step == "append":
            room = start - len(held) if len(held) < start else layer.capacity - len(held)
            count = data.draw(st.integers(0, min(room, 4)))
            added = list(range(fresh, fresh + count))
            fresh += count
            if count:
                layer.update_and_fetch(*keys_and_values(added))
            held += added
        elif step == "rollback":
            to = data.draw(st.sampled_from([0, *range(layer.floor, len(held) + 1)]))
            layer.rollback(to)
            held = held[:to]
        elif step == "grow":
            layer.grow(min(CAPACITY, layer.capacity + 6))
        else:
            to = data.draw(st.sampled_from([0, *range(layer.floor, len(held) + 1)]))
            copied = QuantizedLayerCache(layer.capacity + 2, quantization)
            if to:
                copied.copy(layer, to)
            held, layer = held[:to], copied
        assert layer.offset == len(held)
        assert not layer.floor or layer.floor <= len(held)
    layer.grow(CAPACITY + 8)
    if len(held) < start:
        missing = list(range(1000, 1000 + start - len(held)))
        keys, values = layer.update_and_fetch(*keys_and_values(missing))
        held += missing
        assert mx.array_equal(keys, keys_and_values(held)[0])
        assert mx.array_equal(values, keys_and_values(held)[1])
    found = layer.update_and_fetch(*keys_and_values([7777, 8888]))
    expected = mlx_lm_holds([*held, 7777, 8888], quantization)
    if form == "packed":
        assert (layer.bits, layer.group_size) == (quantization.bits, 32)
    else:
        assert not hasattr(layer, "bits")
        expected = [
            mx.dequantize(packs, scales, biases, 32, quantization.bits)
            for packs, scales, biases in (expected[:3], expected[3:])
        ]
    parts = [*found[0], *found[1]] if form == "packed" else list(found)
    assert all(mx.array_equal(*pair) for pair in zip(parts, expected, strict=True))


def test_the_defaults_are_mlx_lms() -> None:
    assert signature(generate_step).parameters["quantized_kv_start"].default == (
        DEFAULT_QUANTIZED_KV_START
    )
    assert signature(generate_step).parameters["kv_group_size"].default == DEFAULT_KV_GROUP_SIZE


WIDE: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": HEAD, "layer_types": None,
}  # fmt: skip
"""Heads of as many numbers as a group has, at least."""
LATENT: dict[str, Any] = {
    "kv_lora_rank": HEAD, "qk_rope_head_dim": HEAD, "qk_nope_head_dim": HEAD, "v_head_dim": HEAD,
    "index_head_dim": HEAD, "num_key_value_heads": 2,
}  # fmt: skip
NETWORKS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v3": LATENT,
    "deepseek_v32": LATENT,
    "mamba2": {"intermediate_size": 4 * HEAD},
}


def network_of(name: str, **changes: Any) -> nn.Module:
    """A tiny network of an architecture, with heads that divide into groups."""
    return make_network(name, **(WIDE | NETWORKS.get(name, {}) | changes))


def model_of(name: str, quantization: KVQuantization | None) -> TargetModel:
    network = network_of(name)
    return TargetModel(
        network,
        None,  # type: ignore[arg-type]  # these tests use no text
        {"vocab_size": 128},
        name=name,
        layout="dense",
        kv_quantization=quantization and fit_kv_quantization(network, quantization),
    )


class UncrossedCache(KVCache):
    """A cache whose forwards end where it begins to be quantized."""

    def __init__(self, capacity: int, model: TargetModel) -> None:
        super().__init__(lambda capacity: model.make_cache(capacity).layers, capacity)

    def advance(self, tokens: int, stack: Sequence[Any] | None = None) -> None:
        assert not self.length < self.quantized_start < self.length + tokens
        super().advance(tokens, stack)


SHORT = [5, 9, 77, 5, 9, 31]


def answer(
    model: TargetModel,
    sampling: Sampling,
    drafter: OracleDrafter | None = None,
    *,
    rows: int | None = None,
) -> list[int]:
    """40 tokens after the short prompt."""
    cache = UncrossedCache(64, model)
    model.prefill(SHORT[:-1], cache)
    if drafter:
        drafter.begin(SHORT)
    sampler, limits = Sampler(sampling, SHORT), Limits(40, frozenset())
    rounds = rounds_of(model, cache, sampler, SHORT[-1], limits, drafter=drafter, rows=rows)
    return [token for one in rounds for token in one.tokens]


# Rounding may move a key to the next quantization step, and a sampled token with it; recurrent
# layers carry that on, so only the plainest model is sampled.
@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *((name, Sampling()) for name in ("llama", "qwen3_next", "gpt_oss", "deepseek_v3")),
        ("llama", Sampling(temperature=0.7, seed=2)),
    ],
)
@pytest.mark.parametrize("form", ["packed", "bytewise"])
@pytest.mark.parametrize("start", [0, 16])
def test_drafts_leave_the_text_alone(
    name: str, form: KVForm, start: int, sampling: Sampling
) -> None:
    model = model_of(name, KVQuantization(8, 32, start, form))
    plain = answer(model, sampling)
    assert len(set(plain)) > 3
    drafter = OracleDrafter(len(SHORT), plain, error=0.3, silence=0.2)
    assert answer(model, sampling, drafter) == plain
    assert any(drafted for drafted, _ in drafter.verified)


@pytest.mark.parametrize(
    ("name", "form", "layers"),
    [
        ("llama", "packed", 2),
        ("qwen3_next", "packed", 1),
        ("gpt_oss", "dequantized", 1),
        ("deepseek_v3", "dequantized", 2),
    ],
)
def test_keys_are_packed_where_attention_takes_them(name: str, form: KVForm, layers: int) -> None:
    model = model_of(name, KVQuantization(4, 32, form="packed"))
    assert model.kv_quantization == KVQuantization(4, 32, form=form)
    assert model.kv_cache_form == (
        f"4 bits in groups of 32 from token 5,000 on, in {layers} of 2 layers"
    )


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("llama", {"head_dim": 32}, "heads of this model have 32 numbers.*--kv-group-size 32"),
        ("llama", {"head_dim": 80}, "heads of this model have 80 numbers.*omit --kv-bits"),
        ("mamba2", {}, "nothing to quantize; omit --kv-bits"),
        ("deepseek_v32", {"kv_lora_rank": 64}, "reads its caches with its own code"),
    ],
)
def test_what_cannot_be_quantized_is_refused_in_a_sentence(
    name: str, changes: dict[str, Any], sentence: str
) -> None:
    network = network_of(name, **changes)
    size = 32 if name == "deepseek_v32" else 64
    with pytest.raises(InvalidRequestError, match=sentence):
        fit_kv_quantization(network, KVQuantization(8, size))


START = 40
PROMPTS = [[Random(seed).randrange(256) for _ in range(30)] for seed in range(4)]


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Engine:
    return akunu_py.load(ModelOptions(str(tiny_model_dir), kv_bits=8, quantized_kv_start=START))


def test_a_later_prompt_reuses_what_a_fresh_one_would_compute_alike(engine: Engine) -> None:
    def ask(prompt: list[int], cached: int, tokens: int = 24) -> list[int]:
        answer = engine.generate(prompt, Options(tokens, drafter="none"))
        assert answer.stats.cached_tokens == cached
        return answer.token_ids

    first = PROMPTS[0]
    answer = ask(first, 0)
    longer = [*first, *answer[:14], 7, 8]
    again = ask(longer, 44)
    other = ask([*first[:20], 9, 9], 0)  # as quantized, they are not what a fresh prompt has
    assert ask([*first, *answer[:4]], 0)
    engine.reset()
    assert ask(longer, 0) == again
    engine.reset()
    assert ask([*first[:20], 9, 9], 0) == other
    short = [*first[:20], 8, 8]
    engine.reset()
    alone = ask(short, 0)
    engine.reset()
    ask(first, 0, tokens=4)  # nothing is quantized yet
    assert ask(short, 20) == alone


def test_another_process_may_have_quantized_what_a_file_holds(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_store, "_STRETCH", 32)
    monkeypatch.setattr(prompt_store, "_LEAST", 4)

    def start(folder: Path | None = tmp_path) -> Engine:
        return akunu_py.load(
            ModelOptions(
                str(tiny_model_dir), kv_bits=4, quantized_kv_start=START, prompt_cache_dir=folder
            )
        )

    plain, text = Options(12, drafter="none"), [*PROMPTS[0], *PROMPTS[1]]
    one, other = start(), start()
    for engine, length in ((one, 38), (other, 60)):  # both write a file of the first 32 tokens
        engine.generate(text[:length], Options(1, drafter="none"))
        engine.save_prompts(closing=True)
    alone = start(None)
    for length in (20, 36, 50):
        prompt = [*text[:length], 7, 8]
        answers = []
        for engine in (one, start(), alone):
            engine.reset()
            answers.append(engine.generate(prompt, plain).token_ids)
        assert answers[0] == answers[1] == answers[2]


def test_the_text_is_mlx_lms(engine: Engine) -> None:
    for prompt in PROMPTS:
        engine.reset()
        answer = engine.generate(prompt, Options(40, num_draft_tokens=4))
        theirs = generate_step(
            mx.array(prompt),
            engine.model.original,
            max_tokens=40,
            kv_bits=8,
            quantized_kv_start=START,
        )
        expected = [token for token, _ in theirs]
        assert answer.token_ids == expected[: len(answer.token_ids)]
        assert len(answer.token_ids) > START - len(prompt)


def test_a_cache_takes_fewer_bytes_and_grows(tiny_model_dir: Path) -> None:
    backend = find_backend()
    sizes = {}
    for bits in (4, 8, None):
        start = DEFAULT_QUANTIZED_KV_START if bits is None else 8
        options = ModelOptions(str(tiny_model_dir), kv_bits=bits, quantized_kv_start=start)
        model = load_target(options, backend)
        cache = model.make_cache(64)
        model.prefill(PROMPTS[0], cache)
        logits = model.forward(mx.array([1, 2]), cache)
        cache.rollback(30)
        cache.grow(128)
        assert mx.array_equal(model.forward(mx.array([1, 2]), cache), logits)
        sizes[bits] = cache.nbytes
    assert sizes[4] / sizes[None] == (4 + 1) / 32  # and a scale and a bias for 64 numbers
    assert sizes[8] / sizes[None] == (8 + 1) / 32


def test_costs_are_those_of_a_cache_in_this_form(tiny_model_dir: Path) -> None:
    backend = find_backend()
    forms: list[dict[str, Any]] = [
        {}, {"kv_bits": 8}, {"kv_bits": 4}, {"kv_bits": 8, "quantized_kv_start": 0},
    ]  # fmt: skip
    models = [load_target(ModelOptions(str(tiny_model_dir), **form), backend) for form in forms]
    assert len({cost_key(model, backend).file_name for model in models}) == len(forms)
    assert contexts_of(models[0]) == contexts_of(models[3]) == list(CONTEXTS)
    assert contexts_of(models[1]) == [*CONTEXTS, 5000]


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_exact_answers_are_those_without_drafts(name: str, sampling: Sampling) -> None:
    model = model_of(name, KVQuantization(8, 32, 25))  # in the middle of a block
    assert model.is_coarse
    plain = answer(model, sampling, rows=BLOCK_ROWS)
    drafter = OracleDrafter(len(SHORT), plain, error=0.2)
    assert answer(model, sampling, drafter, rows=BLOCK_ROWS) == plain


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("how", ["copy", "rows"])
def test_what_a_layer_gets_replaces_what_it_held(start: int, how: str) -> None:
    layer, other = (QuantizedLayerCache(16, KVQuantization(8, 32, start)) for _ in range(2))
    layer.update_and_fetch(*keys_and_values(list(range(7))))
    early = layer.rows(0, 7)
    layer.update_and_fetch(*keys_and_values([7, 8, 9]))
    other.update_and_fetch(*keys_and_values([20, 21, 22]))
    other.rollback(0)
    if how == "copy":
        other.copy(layer, 10)
    else:
        other.append_rows(early)
        other.append_rows(layer.rows(7, 10))
    found, again = (one.update_and_fetch(*keys_and_values([10])) for one in (layer, other))
    assert all(mx.array_equal(*pair) for pair in zip(again, found, strict=True))
