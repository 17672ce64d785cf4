"""Greedy answers exact to the token, even if forwards over several rows compute differently."""

from pathlib import Path
from random import Random

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from akunu_py.backend import find_backend
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.exactness import SAFETY, TieBreaker, measure_difference, near_ties
from akunu_py.decoding.loop import Limits
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.loading import load_target
from akunu_py.model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Round, Stats
from tests.fakes import OracleDrafter, rounds_of
from tests.markov import VOCABULARY, MarkovModel, free_text

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


def test_without_drafts_nothing_is_decided_again(coarse_engine: Engine) -> None:
    _, stats = answers(coarse_engine, Options(30, drafter="none", exact=True))
    assert (stats.rechecked, stats.recheck_forwards) == (0, 0)


def test_only_greedy_answers_can_be_exact() -> None:
    with pytest.raises(InvalidRequestError, match="Only greedy answers"):
        Options(sampling=Sampling(temperature=1.0), exact=True)


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
