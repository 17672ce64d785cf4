from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.loop import (
    Verdict,
    accept_or_resample,
    match_choices,
    needs_distributions,
)
from akunu_py.drafting.base import Draft
from akunu_py.sampling.random import uniform

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(choices=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
def test_emits_what_choosing_one_at_a_time_would(choices: list[int], data: st.DataObject) -> None:
    draft_tokens = data.draw(
        st.lists(st.integers(0, 3), min_size=len(choices) - 1, max_size=len(choices) - 1)
    )
    verdict = match_choices(choices, draft_tokens)

    assert draft_tokens[: verdict.accepted] == choices[: verdict.accepted]
    assert verdict.next_token == choices[verdict.accepted]
    if verdict.accepted < len(draft_tokens):
        assert draft_tokens[verdict.accepted] != choices[verdict.accepted]


def test_no_draft_yields_the_targets_token() -> None:
    verdict = match_choices([5], [])
    assert (verdict.accepted, verdict.next_token) == (0, 5)


def uniforms(seed: int) -> Callable[[int], tuple[float, float]]:
    return lambda index: (uniform(seed, index, 1), uniform(seed, index, 2))


@given(seed=st.integers(0, 2**32), drafted=st.integers(0, 6), sparsity=st.floats(0, 0.8))
def test_rejection_emits_only_what_the_target_may_say(
    seed: int, drafted: int, sparsity: float
) -> None:
    draw = np.random.default_rng(seed)
    weights = draw.random((2 * drafted + 1, 5)) * (draw.random((2 * drafted + 1, 5)) >= sparsity)
    weights[weights.sum(axis=1) == 0] = 1
    rows = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    target, proposal = rows[: drafted + 1], rows[drafted + 1 :]
    draft_tokens = [int(draw.choice(5, p=row / row.sum())) for row in proposal.astype(np.float64)]

    verdict = accept_or_resample(target, draft_tokens, proposal, uniforms(seed))
    for index, token in enumerate([*draft_tokens[: verdict.accepted], verdict.next_token]):
        assert target[index, token] > 0
    if verdict.accepted < drafted:
        rejected = verdict.accepted
        assert target[rejected, draft_tokens[rejected]] < proposal[rejected, draft_tokens[rejected]]
        assert target[rejected, verdict.next_token] > proposal[rejected, verdict.next_token]


@given(seed=st.integers(0, 2**32), length=st.integers(1, 5))
def test_drafts_drawn_from_the_target_are_always_accepted(seed: int, length: int) -> None:
    draw = np.random.default_rng(seed)
    target = draw.dirichlet(np.ones(5), length + 1)
    draft_tokens = [int(draw.choice(5, p=row)) for row in target[:length]]
    assert (
        accept_or_resample(target, draft_tokens, target[:length], uniforms(seed)).accepted == length
    )


def test_which_verifier_serves_which_draft() -> None:
    certain = Draft((1, 2))
    drawn = Draft((1,), probabilities=np.full((1, 3), 1 / 3, np.float32))
    assert not needs_distributions(certain, greedy=False)
    assert needs_distributions(drawn, greedy=False)
    assert not needs_distributions(drawn, greedy=True)


def test_a_draft_from_no_distribution_is_rejected() -> None:
    """As if a draft model's activations had become infinite."""
    target = np.array([[0.0, 1.0], [0.5, 0.5]], np.float32)
    proposal = np.full((1, 2), np.nan, np.float32)
    assert accept_or_resample(target, [0], proposal, uniforms(1)) == Verdict(0, 1)
