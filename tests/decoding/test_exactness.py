"""Answers exact to the token, even if forwards over several rows compute differently."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.loop import Limits
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_tokenizer
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.planning.row_class import BLOCK_ROWS
from akunu_py.rounds import Round, Stats
from akunu_py.sampling.sampler import Sampler
from tests.architectures import config, make_network
from tests.fakes import OracleDrafter, rounds_of
from tests.markov import MarkovModel, free_text
from tests.rounding import ANY_SIZE, attention_of, round_as

pytestmark = pytest.mark.usefixtures("without_compiler")


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
            rows=BLOCK_ROWS,
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


@pytest.fixture(scope="module", params=["qwen3_5", "gemma3_text"])
def rounding_engine(request: pytest.FixtureRequest, tiny_model_dir: Path) -> Iterator[Engine]:
    """A tiny model in bfloat16 that rounds as on a GPU, with states or windows."""
    backend, name = find_backend(), request.param
    tokenizer = load_tokenizer(str(tiny_model_dir))
    network = make_network(name)
    round_as(ANY_SIZE, network)
    model = TargetModel(network, tokenizer, config(name), name=name, layout="dense")
    with attention_of(ANY_SIZE):
        yield Engine(model, backend, prefill_step_size=64)


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
    drafted = Options(16, drafter="script", exact=True).sampled_as(sampling)
    expected, _ = Conversation(rounding_engine, replace(drafted, drafter="none")).answers()
    assert len(set(expected[0])) > 4
    found, stats = Conversation(rounding_engine, drafted).answers(expected)
    assert found == expected
    assert stats.tokens_per_forward > 1.7
    single = replace(drafted, num_draft_tokens=1)
    assert Conversation(rounding_engine, single).answers(expected)[0] == expected
