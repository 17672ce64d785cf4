"""Answers exact to the token, even if forwards over several rows compute differently."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from akunu_py.bench.contestants import ForcedSampler
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.exactness import (
    BLOCK_ROWS,
    SAFETY,
    TieBreaker,
    measure_difference,
    near_ties,
)
from akunu_py.decoding.loop import Limits
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import BUNDLED_MODEL, ModelOptions, Options, Sampling
from akunu_py.sampling.sampler import Sampler
from akunu_py.sequence import Sequence
from akunu_py.stats import Round, Stats
from akunu_py.text.chat import ChatTranscript
from tests.architectures import config, make_network
from tests.fakes import OracleDrafter, rounds_of
from tests.markov import VOCABULARY, MarkovModel, free_text
from tests.rounding import attention_by_size, round_as_gpus_do

PROMPTS = [[Random(seed).randrange(256) for _ in range(20 + seed)] for seed in range(6)]


class CoarseModel(TargetModel):
    """Forwards over several tokens use slightly other weights: for logits, keys and values."""

    batched: TargetModel

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        return (
            super().forward(tokens, cache)
            if tokens.size == 1
            else self.batched.forward(tokens, cache)
        )


@pytest.fixture(scope="module")
def coarse_engine(tiny_model_dir: Path) -> Engine:
    backend = find_backend()
    model, other = (load_target(str(tiny_model_dir), backend) for _ in range(2))
    mx.random.seed(1)
    other.network.update(
        tree_map(
            lambda weight: weight * (1 + 0.01 * mx.random.normal(weight.shape)),
            other.network.parameters(),
        )
    )
    coarse = CoarseModel(
        model.network, model.tokenizer, model.config, name="coarse", layout=model.layout
    )
    coarse.batched = other
    return Engine(coarse, backend)


def answers(engine: Engine, options: Options) -> tuple[list[list[int]], Stats]:
    total, tokens = Stats(), []
    for prompt in PROMPTS:
        engine.reset()
        answer = engine.generate(prompt, options)
        tokens.append(answer.token_ids)
        total.include(answer.stats)
    return tokens, total


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(repetition_penalty=1.3, logit_bias=((40, 0.5),))]
)
def test_exact_answers_are_plain_decodings(coarse_engine: Engine, sampling: Sampling) -> None:
    plain, _ = answers(coarse_engine, Options(60, sampling, drafter="none"))
    drafted, _ = answers(coarse_engine, Options(60, sampling, drafter="ngram", num_draft_tokens=4))
    exact, stats = answers(
        coarse_engine, Options(60, sampling, drafter="ngram", num_draft_tokens=4, exact=True)
    )
    assert drafted != plain
    assert coarse_engine.speculation.logit_differences[4] > 0.001
    assert exact == plain
    assert 0 < stats.rechecked <= stats.recheck_forwards
    assert (
        stats.generated_tokens
        == stats.accepted + stats.bonus + stats.corrected + stats.plain
        == sum(map(len, plain))
    )
    assert stats.as_dict()["rechecked"] == stats.rechecked


def test_what_is_kept_of_an_exact_answer_does_not_depend_on_drafts(
    coarse_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next turn of a conversation would. No position counts as a near-tie here."""
    monkeypatch.setitem(coarse_engine.speculation.logit_differences, 4, 0.0)
    answer, kept = list(range(40, 60)), list[object]()
    coarse_engine.add_drafter("oracle", lambda _: OracleDrafter(20, answer))
    for drafter in ("none", "oracle"):
        coarse_engine.reset()
        options = Options(20, drafter=drafter, num_draft_tokens=4, exact=True)
        sampler = ForcedSampler(PROMPTS[0], answer)
        list(coarse_engine.stream(Sequence(PROMPTS[0], options, sampler=sampler)))
        coarse_engine.generate([*PROMPTS[0], *answer, 7], Options(0))
        kept.append(keys_held(coarse_engine))
    assert kept[0] == kept[1]


def keys_held(engine: Engine) -> object:
    """The keys of the first layer of the cache that was used last."""
    slot = list(engine._prefixes._slots.values())[-1]
    return slot.cache.rows(0, slot.cache.length)[0][0].tolist()


def test_without_drafts_nothing_is_decided_again(coarse_engine: Engine) -> None:
    _, stats = answers(coarse_engine, Options(30, drafter="none", exact=True))
    assert (stats.rechecked, stats.recheck_forwards) == (0, 0)


def test_near_ties_are_rows_whose_best_two_are_close() -> None:
    logits = mx.array([[1.0, 2.0, 2.05], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    assert near_ties(logits, 0.1).tolist() == [True, False, True]


class NoisyModel(MarkovModel):
    """A batch of several rows reads other logits than a single one: never far off, often wrong."""

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        logits = super().forward(tokens, cache)
        if tokens.size == 1:
            return logits
        noise = mx.random.uniform(-0.4, 0.4, logits.shape, key=mx.random.key(tokens.size))
        return logits + noise


class NoisyTokenizer:
    """Says how a sample is spelled."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) % VOCABULARY for character in text]


def noisy_model() -> TargetModel:
    model = NoisyModel(free_text(seed=5) * 0.2)
    model.tokenizer = NoisyTokenizer()  # type: ignore[assignment]
    return model  # type: ignore[return-value]


@pytest.mark.parametrize(("error", "silence"), [(0, 0), (0.3, 0), (1, 0), (0.2, 0.5)])
@pytest.mark.parametrize("num_draft_tokens", [1, 4])
def test_any_draft_gives_plain_decodings_text(
    error: float, silence: float, num_draft_tokens: int
) -> None:
    model = noisy_model()
    limits = Limits(200, frozenset())
    margin = SAFETY * measure_difference(model, num_draft_tokens)
    assert margin > 0.4

    def start() -> KVCache:
        return model.make_cache(300)

    sampler = Sampler(Sampling())
    plain = text_of(list(rounds_of(model, start(), sampler, 0, limits)))
    cache = start()
    drafter = OracleDrafter(1, plain, error=error, silence=silence)
    drafter.begin([0])
    tie_breaker = TieBreaker(model, cache, sampler, 0, margin)
    rounds = list(
        rounds_of(
            model,
            cache,
            sampler,
            0,
            limits,
            drafter=drafter,
            num_draft_tokens=num_draft_tokens,
            tie_breaker=tie_breaker,
        )
    )
    assert text_of(rounds) == plain
    assert any(one.recheck_forwards for one in rounds)


def text_of(rounds: list[Round]) -> list[int]:
    return [token for one in rounds for token in one.tokens]


class ShapedModel(MarkovModel):
    """Logits depend on where a forward begins, on how many rows it has, and on the row."""

    def forward(self, tokens: mx.array, cache: KVCache) -> mx.array:
        shape = mx.random.key(1000 * cache.length + tokens.size)
        logits = super().forward(tokens, cache)
        return logits + mx.random.uniform(-2, 2, logits.shape, key=shape)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)])
@pytest.mark.parametrize(("error", "silence"), [(0, 0), (0.3, 0.2), (1, 0)])
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 8])
def test_forwards_of_one_shape_give_one_text(
    sampling: Sampling, error: float, silence: float, num_draft_tokens: int
) -> None:
    model: TargetModel = ShapedModel(free_text(seed=5))  # type: ignore[assignment]
    limits = Limits(200, frozenset())

    def rounds(drafter: OracleDrafter | None) -> list[Round]:
        found = rounds_of(
            model,
            model.make_cache(150),  # not whole blocks
            Sampler(sampling),
            0,
            limits,
            drafter=drafter,
            num_draft_tokens=num_draft_tokens,
            block_rows=BLOCK_ROWS,
        )
        return list(found)

    plain = rounds(None)
    assert len(plain) == len(text_of(plain)) == 150
    drafter = OracleDrafter(1, text_of(plain), error=error, silence=silence)
    drafter.begin([0])
    drafted = rounds(drafter)
    assert text_of(drafted) == text_of(plain)
    if num_draft_tokens >= BLOCK_ROWS and not (error or silence):
        assert len(drafted) <= 150 / BLOCK_ROWS + 1  # nothing is computed twice


@pytest.fixture(scope="module", params=["ember", "qwen3_5", "gemma3_text"])
def rounding_engine(request: pytest.FixtureRequest, tiny_model_dir: Path) -> Iterator[Engine]:
    """A model in bfloat16 that rounds as on a GPU: small, or tiny with states or windows."""
    backend, name = find_backend(), request.param
    loaded = load_target(
        ModelOptions(BUNDLED_MODEL if name == "ember" else str(tiny_model_dir), weights="dense"),
        backend,
    )
    network = loaded.original if name == "ember" else make_network(name)
    settings = loaded.config if name == "ember" else config(name)
    mx.disable_compile()  # on a CPU, MLX runs a C++ compiler for every function
    round_as_gpus_do(network)
    model = TargetModel(network, loaded.tokenizer, settings, name=name, layout="dense")
    with attention_by_size():
        yield Engine(model, backend, prefill_step_size=64)
    mx.enable_compile()


class Conversation:
    """Two turns of an engine, in which an oracle drafts."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self._engine = engine
        self._options = options
        engine.add_drafter("script", lambda _: self._drafter)
        self._drafter = OracleDrafter(0, [])

    def answers(self, known: list[list[int]] | None = None) -> tuple[list[list[int]], Stats]:
        """The answers, and what they took; drafts are made of `known` ones, with errors."""
        self._engine.reset()
        prompt, found, total = [7, 11, 5, 60, 7, 11, 100, 3], [], Stats()
        if self._engine.model.name == "ember":
            question = "Write a function that reverses the words of a sentence"  # a long answer
            prompt = ChatTranscript(self._engine.tokenizer).prompt_for(question)
        for turn in range(2):
            self._drafter = OracleDrafter(len(prompt), known[turn] if known else [], error=0.15)
            answer = self._engine.generate(prompt, self._options)
            found.append(answer.token_ids)
            total.include(answer.stats)
            prompt = [*prompt, *answer.token_ids, 9, 44, 23]
        return found, total


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_no_token_in_16_bits(rounding_engine: Engine, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, seed=3)
    drafted = Options(30, sampling, drafter="script", exact=True)
    expected, _ = Conversation(rounding_engine, replace(drafted, drafter="none")).answers()
    assert len(set(expected[0])) > 4
    found, stats = Conversation(rounding_engine, drafted).answers(expected)
    assert found == expected
    assert (stats.rechecked, stats.recheck_forwards) == (0, 0)
    assert stats.tokens_per_forward > 1.7
    short, _ = Conversation(rounding_engine, replace(drafted, num_draft_tokens=1)).answers(expected)
    assert short == expected
