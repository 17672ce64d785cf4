"""A prompt's log-probabilities equal mlx-lm's, whatever the cache holds."""

from dataclasses import replace
from pathlib import Path
from random import Random

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx_lm import load

from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.options import Options
from akunu_py.rounds import Finish
from akunu_py.sampling.forward_logprobs import SCORING_STEP
from akunu_py.sequence import Sequence

PROMPT = [Random(8).randrange(256) for _ in range(2 * SCORING_STEP + 9)]
SCORES = Options(0, logprobs=3, scores_prompt=True)
TOLERANCE = 5e-4


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> npt.NDArray[np.float32]:
    """Log-probabilities after each token of the prompt, by mlx-lm's own model."""
    model = load(str(tiny_model_dir))[0]
    logits = model(mx.array([PROMPT]))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


@pytest.mark.parametrize("max_tokens", [0, 1, 8])
def test_a_prompts_log_probabilities_are_the_models_own(
    engine: Engine, expected: npt.NDArray[np.float32], max_tokens: int
) -> None:
    options = Options(max_tokens, logprobs=3, scores_prompt=True)
    found = engine.generate(PROMPT, options).prompt_logprobs
    assert found is not None
    assert [found.first, *(entry.token for entry in found.following)] == PROMPT
    for row, entry in zip(expected, found.following, strict=False):
        assert entry.logprob == pytest.approx(row[entry.token], abs=TOLERANCE)
        most_likely = [value for _, value in entry.alternatives]
        assert most_likely == pytest.approx(sorted(row, reverse=True)[:3], abs=TOLERANCE)


def test_scoring_does_not_change_the_answer(engine: Engine) -> None:
    answer = engine.generate(PROMPT, Options(8, logprobs=3, scores_prompt=True))
    plain = engine.generate(PROMPT, Options(8, logprobs=3))
    assert answer.token_ids == plain.token_ids
    assert plain.prompt_logprobs is None
    assert len(answer.logprobs) == 8


def test_a_cached_prompt_is_computed_whole_and_stays_cached(engine: Engine) -> None:
    engine.generate(PROMPT, Options(1))
    kept = engine.slots
    scored = engine.generate(PROMPT, SCORES)
    assert scored.stats.cached_tokens == 0
    assert scored.prompt_logprobs is not None
    assert len(scored.prompt_logprobs.following) == len(PROMPT) - 1
    assert engine.slots == kept
    assert engine.generate(PROMPT, Options(1)).stats.cached_tokens == len(PROMPT) - 1


def test_a_prompt_of_one_token_has_no_log_probabilities(engine: Engine) -> None:
    found = engine.generate([7], SCORES).prompt_logprobs
    assert found is not None
    assert (found.first, found.following) == (7, ())


def test_scoring_can_be_cancelled_between_chunks(engine: Engine) -> None:
    before = engine.counters.prefill_chunks
    sequence = Sequence(PROMPT, replace(SCORES, reports_progress=True), may_be_cancelled=True)
    for event in engine.stream(sequence):
        sequence.cancelled = event.prompt_done != 0
    assert event.finish_reason is Finish.CANCELLED
    assert event.prompt_logprobs is None
    assert engine.counters.prefill_chunks - before == 1


def test_scoring_needs_a_number_of_alternatives() -> None:
    with pytest.raises(InvalidRequestError, match="set `logprobs`"):
        Options(scores_prompt=True)
