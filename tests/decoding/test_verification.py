from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from akunu_py.decoding.verification import accept_or_resample, match_choices, needs_distributions
from akunu_py.drafting.base import Draft
from akunu_py.sampling.random import uniform

tokens = st.lists(st.integers(0, 3), max_size=12)


@given(choices=st.lists(st.integers(0, 3), min_size=1, max_size=12), data=st.data())
def test_emits_what_choosing_one_at_a_time_would(choices: list[int], data: st.DataObject) -> None:
    drafts = data.draw(
        st.lists(st.integers(0, 3), min_size=len(choices) - 1, max_size=len(choices) - 1)
    )
    verdict = match_choices(choices, drafts)

    assert drafts[: verdict.accepted] == choices[: verdict.accepted]
    assert verdict.next_token == choices[verdict.accepted]
    if verdict.accepted < len(drafts):
        assert drafts[verdict.accepted] != choices[verdict.accepted]


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
    drafts = [int(draw.choice(5, p=row / row.sum())) for row in proposal.astype(np.float64)]

    verdict = accept_or_resample(target, drafts, proposal, uniforms(seed))
    for index, token in enumerate([*drafts[: verdict.accepted], verdict.next_token]):
        assert target[index, token] > 0
    if verdict.accepted < drafted:
        fallen = verdict.accepted
        assert target[fallen, drafts[fallen]] < proposal[fallen, drafts[fallen]]
        assert target[fallen, verdict.next_token] > proposal[fallen, verdict.next_token]


@given(seed=st.integers(0, 2**32), drafts=st.lists(st.integers(0, 4), max_size=5))
def test_a_draft_without_probabilities_counts_as_certain(seed: int, drafts: list[int]) -> None:
    target = np.random.default_rng(seed).dirichlet(np.ones(5), len(drafts) + 1)
    certain = np.eye(5)[drafts]
    assert accept_or_resample(target, drafts, None, uniforms(seed)) == accept_or_resample(
        target, drafts, certain, uniforms(seed)
    )


@given(seed=st.integers(0, 2**32), length=st.integers(1, 5))
def test_drafts_drawn_from_the_target_always_stand(seed: int, length: int) -> None:
    draw = np.random.default_rng(seed)
    target = draw.dirichlet(np.ones(5), length + 1)
    drafts = [int(draw.choice(5, p=row)) for row in target[:length]]
    assert accept_or_resample(target, drafts, target[:length], uniforms(seed)).accepted == length


def test_which_verifier_serves_which_draft() -> None:
    certain = Draft((1, 2))
    drawn = Draft((1,), probabilities=np.full((1, 3), 1 / 3, np.float32))
    assert not needs_distributions(certain, greedy=False)
    assert needs_distributions(drawn, greedy=False)
    assert not needs_distributions(drawn, greedy=True)
