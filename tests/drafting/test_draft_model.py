"""A second model as the drafter: exact, cheap to roll back, refused where it does not fit."""

import gc
from dataclasses import replace
from pathlib import Path
from random import Random
from weakref import ref

import mlx.core as mx
import numpy as np
import pytest

import akunu_py
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.chain import Chain
from akunu_py.drafting.guessing import DraftModel, DraftModelGuesser
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target, load_tokenizer
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Options, Sampling
from akunu_py.planning.planner import FixedPlanner
from akunu_py.rounds import Finish
from akunu_py.sampling.sampler import Sampler
from tests.architectures import make_model
from tests.fakes import GuessingDrafter, rounds_of
from tests.markov import MarkovModel, free_text, markov_model
from tests.tiny_model import write_tiny_model

PROMPT = [Random(8).randrange(256) for _ in range(40)]
SEED = 3
SAMPLED = Sampling(temperature=0.8, top_k=30, seed=SEED)


@pytest.fixture(scope="module")
def paired_engine(tiny_model_dir: Path) -> Engine:
    """The tiny model drafts for itself."""
    return akunu_py.load(
        akunu_py.ModelOptions(str(tiny_model_dir), draft_model=str(tiny_model_dir))
    )


@pytest.fixture(scope="module")
def mismatched_engine(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Another random model drafts; it rarely agrees, and has a larger vocabulary."""
    other = write_tiny_model(
        tmp_path_factory.mktemp("models") / "other", seed=9, num_hidden_layers=1, vocab_size=384
    )
    return akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), draft_model=str(other)))


def drafter_of(source: DraftModel, sampling: Sampling = Sampling()) -> GuessingDrafter:  # noqa: B008
    return GuessingDrafter(DraftModelGuesser(source, Sampler(sampling)))


@pytest.mark.parametrize("num_draft_tokens", [1, 4, 7])
def test_greedy_answers_do_not_change(
    paired_engine: Engine, mismatched_engine: Engine, num_draft_tokens: int
) -> None:
    for engine in (paired_engine, mismatched_engine):
        engine.reset()
        plain = engine.generate(PROMPT, Options(50, drafter="none")).token_ids
        drafted = engine.generate(
            PROMPT, Options(50, drafter="model", num_draft_tokens=num_draft_tokens)
        )
        assert drafted.token_ids == plain
        assert drafted.stats.drafted > 0


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        SAMPLED,
        replace(SAMPLED, repetition_penalty=1.3, presence_penalty=0.8, frequency_penalty=0.4),
        Sampling(temperature=1.2, top_p=0.9, xtc_probability=0.5, xtc_threshold=0.05, seed=SEED),
        Sampling(frequency_penalty=0.8),
    ],
)
def test_a_model_that_drafts_for_itself_is_always_right(
    paired_engine: Engine, sampling: Sampling
) -> None:
    paired_engine.reset()
    stats = paired_engine.generate(
        PROMPT, Options(50, drafter="model", num_draft_tokens=4).sampled_as(sampling)
    ).stats
    assert stats.acceptance_rate > 0.98
    assert stats.generated_tokens == stats.accepted + stats.bonus + stats.corrected + stats.plain


@pytest.mark.parametrize("num_draft_tokens", [None, 4])
def test_a_seed_gives_one_answer(
    paired_engine: Engine, mismatched_engine: Engine, num_draft_tokens: int | None
) -> None:
    """Whatever was drafted: without drafts, with what earlier answers taught, and in company."""
    sampling = Sampling(temperature=0.8, top_k=20, repetition_penalty=1.2, seed=5)
    prompts = [[Random(number).randrange(256) for _ in range(30)] * 2 for number in range(2)]
    options = Options(24, drafter="model", num_draft_tokens=num_draft_tokens).sampled_as(sampling)
    for engine in (paired_engine, mismatched_engine):
        engine.reset()
        plain = [engine.generate(one, replace(options, drafter="none")) for one in prompts]
        wanted = [one.token_ids for one in plain]
        for _ in range(2):
            assert [engine.generate(one, options).token_ids for one in prompts] == wanted
        assert [one.token_ids for one in engine.generate_batch(prompts, options)] == wanted


def test_models_that_nearly_agree_draw_the_same_tokens() -> None:
    """Where both are unsure, too: two draws of their own would agree in one of four places."""
    sampling, table = Sampling(temperature=1.0, seed=3), free_text() / 3
    near = table + 0.1 * np.random.default_rng(2).normal(size=table.shape)
    target = markov_model(table)
    drafter = drafter_of(DraftModel(markov_model(near), target), sampling)
    drafter.begin([1])
    rounds = rounds_of(
        target,
        target.make_cache(500),
        Sampler(sampling),
        1,
        Limits(400, frozenset()),
        drafter=drafter,
        num_draft_tokens=4,
    )
    counts = [(one.accepted, one.accepted < len(one.draft)) for one in rounds]
    accepted, rejected = map(sum, zip(*counts, strict=True))
    assert accepted > 9 * rejected


@pytest.mark.parametrize("name", ["llama", "mamba", "qwen3_next", "gemma3_text"])
def test_a_cache_that_went_back_drafts_like_a_new_one(name: str, tiny_model_dir: Path) -> None:
    """Whether it goes back by counters or returns to a mark: the context alone decides."""
    model = make_model(name, load_tokenizer(str(tiny_model_dir)))

    def drafter() -> GuessingDrafter:
        return drafter_of(DraftModel(model, model), SAMPLED)

    tokens = [Random(3).randrange(100) for _ in range(30)]
    rolled = drafter()
    rolled.begin(tokens)
    for emitted in ([5], [6, 7, 8, 9], [3]):
        assert len(rolled.propose(4)) == 4
        rolled.extend(emitted)
        tokens += emitted
    fresh = drafter()
    fresh.begin(tokens)
    assert rolled.propose(5).tokens == fresh.propose(5).tokens


def test_a_draft_model_stops_at_the_end_of_its_context() -> None:
    model = MarkovModel(free_text())
    model.context_length = 4
    drafter = drafter_of(DraftModel(model, markov_model(free_text())))  # type: ignore[arg-type]
    drafter.begin([1, 2])
    assert len(drafter.propose(9)) == 2
    drafter.extend([3, 4])
    assert not drafter.propose(9)


@pytest.mark.parametrize(("prompt", "asked"), [([1, 2], 1), ([1, 2, 3, 4], 0)])
def test_a_draft_model_whose_context_is_full_is_not_asked(prompt: list[int], asked: int) -> None:
    class Asked(FixedPlanner):
        times = 0

        def should_guess(self, *_: object) -> bool:
            self.times += 1
            return True

    model, planner = MarkovModel(free_text()), Asked(4)
    model.context_length = 4
    source = DraftModel(model, markov_model(free_text()))  # type: ignore[arg-type]
    chain = Chain(DraftModelGuesser(source, Sampler(Sampling())), AcceptanceRates())
    session = DraftSession(planner=planner, chain=chain, num_draft_tokens=4)
    session.begin(prompt)
    session.propose(4, len(prompt))
    assert planner.times == asked


def test_another_tokenizer_is_refused_with_the_reason() -> None:
    target, draft = MarkovModel(free_text()), MarkovModel(free_text())
    draft.tokenizer.vocabulary = {**target.tokenizer.vocabulary, "8": 8}
    with pytest.raises(InvalidRequestError, match="has 9 tokens, not 8"):
        DraftModel(draft, target)  # type: ignore[arg-type]
    draft.tokenizer.vocabulary = {**target.tokenizer.vocabulary, "1": 2, "2": 1}
    with pytest.raises(InvalidRequestError, match="reads '1' as 2, not as 1"):
        DraftModel(draft, target)  # type: ignore[arg-type]


def test_other_end_tokens_than_the_targets_are_no_obstacle(
    paired_engine: Engine, tmp_path: Path
) -> None:
    """The target alone decides where an answer ends; the draft model drafts on past its own end."""
    plain = paired_engine.generate(PROMPT, Options(50, drafter="none")).token_ids
    seen = list(dict.fromkeys(plain))
    drafts_end, targets_end = seen[1], seen[-1]
    target = write_tiny_model(tmp_path / "target", eos_token_id=[targets_end])
    draft = write_tiny_model(tmp_path / "draft", eos_token_id=[drafts_end])
    engine = akunu_py.load(akunu_py.ModelOptions(str(target), draft_model=str(draft)))
    answer = engine.generate(PROMPT, Options(50, drafter="model", num_draft_tokens=4))
    assert answer.token_ids == plain[: plain.index(targets_end)]
    assert drafts_end in answer.token_ids
    assert answer.finish_reason is Finish.EOS
    assert answer.stats.drafted - answer.stats.accepted <= 1  # the end, which is not emitted


@pytest.mark.parametrize("after", range(4))
def test_an_interrupted_draft_leaves_nothing_behind(
    tiny_model_dir: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_target(str(tiny_model_dir), find_backend())
    source = DraftModel(model, model)
    tokens = list(range(40))
    whole, left = model.forward, iter(range(after))

    def interrupted(given: mx.array, cache: KVCache) -> mx.array:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(given, cache)

    def draw() -> None:
        logits = source.advance(tokens, 4)
        assert logits is not None
        for _ in range(4):
            source.append(mx.argmax(logits, axis=-1))

    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draw()
    logits = source.advance(tokens, 4)
    assert logits is not None
    expected = model.forward(mx.array(tokens), model.make_cache(64))[-1:]
    assert mx.allclose(logits, expected, atol=1e-3)


@pytest.fixture(scope="module")
def wider_engine(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The target predicts ids that the draft model lacks; their tokenizer uses none of them."""
    wide = write_tiny_model(tmp_path_factory.mktemp("models") / "wide", vocab_size=4096)
    return akunu_py.load(akunu_py.ModelOptions(str(wide), draft_model=str(tiny_model_dir)))


def test_a_draft_model_never_sees_ids_that_it_lacks(
    wider_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX would read beyond the embeddings."""
    source = wider_engine.speculation.required_draft_model()
    forward, seen = source.model.forward, [0]

    def spied(tokens: mx.array, cache: KVCache) -> mx.array:
        seen.append(int(tokens.max().item()))  # type: ignore[arg-type]
        return forward(tokens, cache)

    monkeypatch.setattr(source.model, "forward", spied)
    prompt = [5, 900, 4000, 6, 1000]
    plain = wider_engine.generate(prompt, Options(max_tokens=12, drafter="none"))
    drafted = wider_engine.generate(prompt, Options(12, drafter="model", num_draft_tokens=3))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0
    assert max(plain.token_ids) > source.model.vocabulary_size > max(seen) > 0


def test_an_answer_that_nobody_reads_keeps_no_draft_model(paired_engine: Engine) -> None:
    for _ in range(3):
        paired_engine.stream("never read", Options(max_tokens=4))
    paired_engine.reset()
    assert not paired_engine.speculation.required_draft_model().in_use


def test_a_long_prompt_is_read_a_step_at_a_time(model: TargetModel) -> None:
    source = DraftModel(model, model)
    drafter = drafter_of(source)
    drafter.begin([Random(4).randrange(256) for _ in range(900)])
    assert len(drafter.propose(3)) == 0
    assert len(drafter.propose(3)) == 3


def test_a_cache_that_was_dropped_is_held_by_no_other(model: TargetModel) -> None:
    source = DraftModel(model, model)
    for _ in range(3):
        lent = [source.lend(PROMPT) for _ in range(4)]
        dropped = [ref(one) for one in lent[1:-1]]
        for one in lent[:-1]:
            one.in_use = False
        source.clear()
        del one, lent[:-1]
        gc.collect()
        assert not any(gone() for gone in dropped)


def test_caches_for_drafts_count_and_go_with_the_others(tiny_model_dir: Path) -> None:
    folder = str(tiny_model_dir)
    engine = akunu_py.load(akunu_py.ModelOptions(folder, draft_model=folder))
    drafts = engine.speculation.draft_model
    assert drafts
    engine.generate(PROMPT, Options(5, drafter="model"))
    held = drafts.nbytes
    assert held
    with_few = akunu_py.ModelOptions(folder, draft_model=folder, prompt_cache_bytes=1)
    engine.reset()
    assert drafts.nbytes == 0
    engine = akunu_py.load(with_few)
    engine.generate(PROMPT, Options(5, drafter="model"))
    assert engine.speculation.draft_model
    assert engine.speculation.draft_model.nbytes == 0
