"""Log-probabilities are the model's own, however tokens were drafted and chosen."""

from dataclasses import replace
from random import Random

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.events import Completion
from akunu_py.options import Options, Sampling
from akunu_py.sampling.forward_logprobs import ForwardLogprobs
from akunu_py.tokens import LogprobRequest
from tests.fakes import BigramDrafter, OracleDrafter, drafted_answer
from tests.tiny_model import VOCABULARY

PROMPT = [Random(8).randrange(256) for _ in range(30)]
TOLERANCE = 2e-4


def assert_of_the_model(engine: Engine, answer: Completion, alternatives: int) -> None:
    """Compares the reported values with one forward through mlx-lm's model."""
    tokens = [*PROMPT, *answer.token_ids]
    logits = engine.model.network(mx.array(tokens)[None])[0].astype(mx.float32)
    rows = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))[len(PROMPT) - 1 : -1]
    assert [entry.token for entry in answer.logprobs] == answer.token_ids
    for row, entry in zip(rows, answer.logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token], abs=TOLERANCE)
        values = [value for _, value in entry.alternatives]
        assert values == pytest.approx(sorted(row, reverse=True)[:alternatives], abs=TOLERANCE)
        assert values == pytest.approx(
            [row[token] for token, _ in entry.alternatives], abs=TOLERANCE
        )


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(repetition_penalty=1.5, logit_bias=((70, 4.0),)),
        Sampling(temperature=1.2, top_k=40, top_p=0.95, seed=5),
    ],
    ids=str,
)
@pytest.mark.parametrize("alternatives", [0, 3])
def test_drafted_and_plain_values_are_the_models(
    engine: Engine, sampling: Sampling, alternatives: int
) -> None:
    asked = Options(40, drafter="none", logprobs=alternatives).sampled_as(sampling)
    plain = engine.generate(PROMPT, asked)
    assert_of_the_model(engine, plain, alternatives)

    oracle = OracleDrafter(len(PROMPT), plain.token_ids, error=0.3, silence=0.3)
    drafted = drafted_answer(engine, oracle, PROMPT, asked)
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.stats.accepted < drafted.stats.drafted
    assert_of_the_model(engine, drafted, alternatives)


def test_values_are_right_if_drafts_are_rejected_at_random(engine: Engine) -> None:
    text = [Random(1).randrange(VOCABULARY) for _ in range(2000)]
    drafter = BigramDrafter(text, VOCABULARY, seed=2)
    asked = Options(40, temperature=2.0, seed=3, num_draft_tokens=3)
    answer = drafted_answer(engine, drafter, PROMPT, replace(asked, logprobs=2))
    assert answer.token_ids == drafted_answer(engine, drafter, PROMPT, asked).token_ids
    assert answer.stats.drafted
    assert_of_the_model(engine, answer, 2)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_every_event_has_a_value_for_each_of_its_tokens(engine: Engine, drafter: str) -> None:
    whole = engine.generate(PROMPT, Options(40, drafter=drafter)).text
    options = Options(40, stop=(whole[12:14],), drafter=drafter, logprobs=1)
    events = list(engine.stream(PROMPT, options))
    for event in events:
        assert [entry.token for entry in event.logprobs] == list(event.tokens)
        assert len(event.pieces) - len(event.tokens) == (event.finish_reason is not None)
    assert events[-1].finish_reason == "stop"


def test_nothing_is_reported_unless_asked_for(engine: Engine) -> None:
    assert engine.generate(PROMPT, Options(8)).logprobs == []


@pytest.mark.parametrize("logprobs", [-1, 101])
def test_impossible_numbers_of_alternatives_are_refused(logprobs: int) -> None:
    with pytest.raises(InvalidRequestError, match="`logprobs` must be"):
        Options(logprobs=logprobs)


def test_more_alternatives_than_tokens_gives_all_tokens() -> None:
    logits = mx.array([[1.0, 3.0, 2.0]])
    (entry,) = ForwardLogprobs(logits, None, LogprobRequest(logprobs=9)).logprobs([2])
    assert [token for token, _ in entry.alternatives] == [1, 2, 0]


def test_a_token_that_differs_from_the_choice_has_its_own_value() -> None:
    """As after rejection sampling."""
    logits = mx.log(mx.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]))
    forward_logprobs = ForwardLogprobs(logits, mx.array([0, 2]), LogprobRequest(logprobs=0))
    assert [entry.logprob for entry in forward_logprobs.logprobs([0, 1])] == pytest.approx(
        np.log([0.5, 0.2]).tolist()
    )
