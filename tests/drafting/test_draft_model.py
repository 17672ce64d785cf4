"""A second model as the drafter: exact, cheap to roll back, refused where it does not fit."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

import akunu_py
from akunu_py.drafting.draft_model import DraftModel, DraftModelDrafter
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options, Sampling
from akunu_py.stats import Finish
from tests.markov import VOCABULARY, MarkovModel, free_text, markov_model
from tests.tiny_model import write_tiny_model

PROMPT = [Random(8).randrange(256) for _ in range(40)]
SAMPLED = Sampling(temperature=0.8, top_k=30, seed=3)


@pytest.fixture(scope="module")
def paired_engine(tiny_model_dir: Path) -> Engine:
    """The tiny model drafts for itself."""
    return akunu_py.load(str(tiny_model_dir), draft_model=str(tiny_model_dir))


@pytest.fixture(scope="module")
def mismatched_engine(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Another random model drafts; it rarely agrees, and has a larger vocabulary."""
    other = write_tiny_model(
        tmp_path_factory.mktemp("models") / "other", seed=9, num_hidden_layers=1, vocab_size=384
    )
    return akunu_py.load(str(tiny_model_dir), draft_model=str(other))


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


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_a_model_that_drafts_for_itself_is_always_right(
    paired_engine: Engine, sampling: Sampling
) -> None:
    paired_engine.reset()
    stats = paired_engine.generate(
        PROMPT, Options(50, sampling, drafter="model", num_draft_tokens=4)
    ).stats
    assert stats.acceptance_rate > 0.98
    assert stats.generated_tokens == stats.accepted + stats.bonus + stats.corrected + stats.plain


def test_draws_come_with_the_rows_they_were_drawn_from() -> None:
    drafter = DraftModelDrafter(
        DraftModel(markov_model(free_text()), markov_model(free_text())), SAMPLED, seed=1
    )
    drafter.begin([1, 2, 3])
    draft = drafter.propose(5)
    assert draft.probabilities is not None
    assert draft.probabilities.shape == (5, VOCABULARY)
    assert np.allclose(draft.probabilities.sum(axis=1), 1, atol=1e-5)
    assert all(draft.probabilities[range(5), draft.tokens] > 0)


def test_what_is_drafted_depends_on_the_context_alone() -> None:
    """Not on what was drafted before and fell, nor on how the context arrived."""
    source = DraftModel(markov_model(free_text()), markov_model(free_text()))
    rolled = DraftModelDrafter(source, SAMPLED, seed=1)
    rolled.begin([1, 2])
    for tokens in ([5], [6, 7, 0], [3]):
        rolled.propose(4)
        rolled.extend(tokens)
    fresh = DraftModelDrafter(
        DraftModel(markov_model(free_text()), markov_model(free_text())), SAMPLED, seed=1
    )
    fresh.begin([1, 2, 5, 6, 7, 0, 3])
    assert rolled.propose(6).tokens == fresh.propose(6).tokens


def test_a_draft_model_stops_at_the_end_of_its_context() -> None:
    model = MarkovModel(free_text())
    model.context_length = 4
    drafter = DraftModelDrafter(
        DraftModel(model, markov_model(free_text())),  # type: ignore[arg-type]
        Sampling(),
        seed=1,
    )
    drafter.begin([1, 2])
    assert len(drafter.propose(9)) == 2
    drafter.extend([3, 4])
    assert not drafter.propose(9)


def test_another_tokenizer_is_refused_with_the_reason() -> None:
    target, draft = MarkovModel(free_text()), MarkovModel(free_text())
    draft.tokenizer.vocabulary = {**target.tokenizer.vocabulary, "8": 8}
    with pytest.raises(InvalidRequestError, match="has 9 tokens, and not 8"):
        DraftModel(draft, target)  # type: ignore[arg-type]
    draft.tokenizer.vocabulary = {**target.tokenizer.vocabulary, "1": 2, "2": 1}
    with pytest.raises(InvalidRequestError, match="reads '1' as 2, and not as 1"):
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
    engine = akunu_py.load(str(target), draft_model=str(draft))
    answer = engine.generate(PROMPT, Options(50, drafter="model", num_draft_tokens=4))
    assert answer.token_ids == plain[: plain.index(targets_end)]
    assert drafts_end in answer.token_ids
    assert answer.finish_reason is Finish.EOS
    assert answer.stats.drafted - answer.stats.accepted <= 1  # the end, which is not emitted
