"""Sampled drafts under the planner: which are verified does not depend on the tokens drawn.

Only drafts end at end tokens and stop strings here. The text goes on after them, so every position
of a long answer is drafted, planned and cut as the last one of an answer is.
"""

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.decoding.draft_session import DraftTrimmer
from akunu_py.decoding.loop import Limits
from akunu_py.drafting.base import Draft, Drafter
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner
from akunu_py.rounds import Round
from akunu_py.sampling.sampler import Sampler
from tests.fakes import BigramDrafter, rounds_of
from tests.markov import (
    VOCABULARY,
    Table,
    assert_drawn_from,
    letters_constraint,
    markov_model,
    spelled,
)
from tests.planning.curves import FLAT, STEPPED, curve

DRAWS = 4_000
LONGEST = 8
CURVES = {
    "two do not pay": curve(lambda size: 10.0 if size == 1 else 24.0),
    "flat": FLAT,
    "stepped": STEPPED,
}
SAMPLING = Sampling(temperature=1.0, seed=17)
FILTERED = Sampling(temperature=0.9, top_k=6, top_p=0.99, min_p=0.01, seed=4, logit_bias=((2, 1),))
PENALISED = Sampling(temperature=1.0, seed=5, repetition_penalty=1.5, repetition_context_size=1)
END = 0
NEVER_C_AFTER_B = "([acdefgh]|b+[adefgh])*b*"


def often_ended() -> Table:
    """Log-probabilities: a third of all tokens ends the text, most others count up."""
    probs = np.full((VOCABULARY, VOCABULARY), 0.01)
    probs[:, END] = 1 / 3
    for token in range(VOCABULARY):
        probs[token, 1 + token % (VOCABULARY - 1)] = 2 / 3 - 0.06
    logits: Table = np.log(probs)
    return logits


class SimulatedTime(DraftPlanner):
    """Holds the curve for true: rounds of a fake model take no time worth learning from."""

    def observe(self, outcome: Round) -> None:
        super().observe(replace(outcome, seconds=None))

    def observe_proposal(self, seconds: float) -> None:
        """Each takes as long, since a pause of this machine would end the drafting."""
        super().observe_proposal(1e-4)


def with_bigram(_: Sampling) -> Drafter:
    draws, rows = np.random.default_rng(3), np.exp(often_ended())
    text = [END]
    while len(text) < 2000:
        text.append(int(draws.choice(VOCABULARY, p=rows[text[-1]])))
    return BigramDrafter(text, VOCABULARY, seed=17)


class Boastful:
    """Tells how likely it found each token that it drew, and stops after an unlikely one."""

    def __init__(self, sampling: Sampling) -> None:
        self._drafter = with_bigram(sampling)
        self.begin = self._drafter.begin
        self.extend = self._drafter.extend
        self.feedback = self._drafter.feedback

    def propose(self, limit: int) -> Draft:
        draft = self._drafter.propose(limit)
        assert draft.probabilities is not None
        found = draft.probabilities[range(len(draft)), draft.tokens].tolist()
        length = next((i + 1 for i, prob in enumerate(found) if prob < 0.5), len(draft))
        return replace(draft, accept_probs=tuple(found)).cut(length)


def assert_leaves_the_distribution_alone(
    make: Callable[[Sampling], Drafter],
    costs: CostCurve,
    sampling: Sampling = SAMPLING,
    *,
    trimmer: DraftTrimmer | None = None,
    regex: str | None = None,
) -> None:
    """Decodes a long answer and compares its transitions with the target's distributions."""
    model, drafter = markov_model(often_ended()), make(sampling)
    constraint = None if regex is None else letters_constraint(regex)
    drafter.begin([END])
    rounds = list(
        rounds_of(
            model,
            model.make_cache(DRAWS + 1),
            Sampler(sampling, [END], constraint=constraint),
            END,
            Limits(DRAWS, frozenset()),
            drafter=drafter,
            num_draft_tokens=LONGEST,
            planner=SimulatedTime(costs),
            trimmer=trimmer,
        )
    )
    every_token = mx.arange(VOCABULARY)
    asked = Sampler(sampling)
    logits = asked.process_logits(model.forward(every_token, model.make_cache(9)), 1, every_token)
    rows = np.array(asked.distributions(logits, 1), np.float64)
    if regex == NEVER_C_AFTER_B:
        rows[1, 2] = 0
    rows /= rows.sum(axis=1, keepdims=True)
    assert_drawn_from(rows, [END, *(token for one in rounds for token in one.tokens)])
    assert sum(one.accepted for one in rounds) > DRAWS / 10


@pytest.mark.parametrize(
    ("make", "name"), [*((with_bigram, name) for name in CURVES), (Boastful, "stepped")]
)
def test_an_end_token_is_as_likely_as_without_drafts(
    make: Callable[[Sampling], Drafter], name: str
) -> None:
    trimmer = DraftTrimmer(frozenset({END}))
    assert_leaves_the_distribution_alone(make, CURVES[name], trimmer=trimmer)


@pytest.mark.parametrize("name", ["two do not pay", "stepped"])
def test_a_stop_string_is_as_likely_as_without_drafts(name: str) -> None:
    trimmer = DraftTrimmer(frozenset(), ("a", "de"), spelled)
    assert_leaves_the_distribution_alone(with_bigram, CURVES[name], trimmer=trimmer)


def test_a_grammar_leaves_what_it_allows_as_likely_as_without_drafts() -> None:
    assert_leaves_the_distribution_alone(with_bigram, STEPPED, regex=NEVER_C_AFTER_B)


@pytest.mark.parametrize(
    ("sampling", "name"), [(FILTERED, "stepped"), (PENALISED, "two do not pay")]
)
def test_filters_and_penalties_hold_for_planned_drafts(sampling: Sampling, name: str) -> None:
    trimmer = DraftTrimmer(frozenset({END}))
    assert_leaves_the_distribution_alone(with_bigram, CURVES[name], sampling, trimmer=trimmer)


def test_a_sampled_draft_ends_with_a_stop_string_that_later_tokens_would_hide() -> None:
    """As when a tokenizer takes out the space before a full stop."""
    trimmer = DraftTrimmer(frozenset(), ("b",), lambda tokens: spelled(tokens).replace("bc", "d"))
    rows = np.full((3, VOCABULARY), 1 / VOCABULARY, np.float32)
    for last in range(VOCABULARY):
        assert trimmer.trim(Draft((0, 1, last), probabilities=rows)).tokens == (0, 1)
