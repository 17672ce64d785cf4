"""Random schedules of sequences in company: no answer changes, each cache stays in order."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.states import arrays_of
from akunu_py.decoding.batch import Batch, Member, why_not_batched
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits
from akunu_py.decoding.target import ModelTarget
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.planning.planner import FixedPlanner
from akunu_py.rounds import Round
from akunu_py.sampling.sampler import Sampler
from tests.architectures import make_model
from tests.decoding.company import joining, prompt_of
from tests.fakes import OracleDrafter, rounds_of

LONGEST = 9
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.9, top_p=0.9, seed=5),
    Sampling(temperature=0.8, top_k=20, seed=2, repetition_penalty=1.2),
    Sampling(presence_penalty=0.8, repetition_penalty=1.3, repetition_context_size=6),
)


Answers = Callable[[int, Sampling], list[int]]


OTHERS = (
    "qwen3_5", "qwen3_next", "mamba2", "falcon_h1", "lfm2", "bailing_moe_linear", "deepseek_v3",
    "kimi_linear", "gemma3_text",
)  # fmt: skip
"""With recurrences of three kinds, with convolutions alone, with and without attention, with latent
attention, with both, and with windows."""


@pytest.fixture(scope="module")
def alone(smallest: TargetModel) -> Answers:
    return answers_of(smallest)


def answers_of(model: TargetModel) -> Answers:
    """What plain decoding answers without company."""

    @cache
    def answer(number: int, sampling: Sampling) -> list[int]:
        prompt = prompt_of(number)
        held = model.make_cache(256)
        model.prefill(prompt[:-1], held)
        sampler = Sampler(sampling, prompt)
        rounds = rounds_of(model, held, sampler, prompt[-1], Limits(LONGEST, frozenset()))
        return [token for one in rounds for token in one.tokens]

    return answer


@dataclass(frozen=True)
class Plan:
    """A sequence: what it answers, how it drafts, when it comes, and when it is cancelled."""

    number: int
    sampling: Sampling
    seed: int
    error: float
    silence: float
    joins_at: int
    cancelled_after: int


plans = st.builds(
    Plan,
    st.integers(0, 4),
    st.sampled_from(SAMPLINGS),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.2, 0.6]),
    st.sampled_from([0.2, 0.9, 1.0, 1.0]),
    st.integers(0, 8),
    st.sampled_from([1, 3, 6, 99, 99, 99]),
)


@dataclass
class Answer:
    """What a running sequence has answered, in a cache that has room for little and grows."""

    plan: Plan
    model: TargetModel
    answer: list[int]
    cache: KVCache = field(init=False)
    emitted: list[int] = field(default_factory=list)
    rounds: int = 0

    @property
    def is_done(self) -> bool:
        return self.rounds >= self.plan.cancelled_after or len(self.emitted) >= LONGEST

    def begin(self) -> Member:
        """Joins those that run."""
        plan, prompt = self.plan, prompt_of(self.plan.number)
        self.cache = self.model.make_cache(len(prompt) + 2)
        self.model.prefill(prompt[:-1], self.cache)
        drafter = OracleDrafter(
            len(prompt), self.answer, seed=plan.seed, error=plan.error, silence=plan.silence
        )
        drafter.begin(prompt)
        session = DraftSession(drafter, FixedPlanner(4), num_draft_tokens=4)
        target = ModelTarget(
            self.model,
            self.cache,
            Sampler(plan.sampling, prompt),
            4,
            limit=64,
            grow=lambda tokens: self.cache.grow(tokens + 3),
        )
        return Member(target, session, prompt[-1], Limits(LONGEST, frozenset()))

    def is_in_order(self) -> bool:
        """Whether its cache holds what a fresh prefill of its tokens holds."""
        tokens = [*prompt_of(self.plan.number), *self.emitted][:-1]
        self.cache.rollback(min(len(tokens), self.cache.length))
        tokens = tokens[: self.cache.length]
        if not tokens:
            return True
        fresh = self.model.make_cache(len(tokens))
        self.model.prefill(tokens, fresh)
        mine, theirs = (
            [*chain(*held.rows(0, len(tokens))), *arrays_of(list(held.checkpoint().states))]
            for held in (self.cache, fresh)
        )
        pairs = zip(mine, theirs, strict=True)
        return all(np.allclose(own, other, atol=1e-3) for own, other in pairs)


@settings(max_examples=30)
@given(st.lists(plans, min_size=2, max_size=4), st.integers(0, 9999))
def test_no_schedule_changes_an_answer_or_a_cache(
    smallest: TargetModel, alone: Answers, schedule: list[Plan], seed: int
) -> None:
    with joining(after=seed % 4):
        run_schedule(smallest, alone, schedule, seed)


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest) -> tuple[TargetModel, Answers]:
    model = make_model(request.param)
    assert why_not_batched(model) is None
    return model, answers_of(model)


@settings(max_examples=int(os.environ.get("AKUNU_SCHEDULES", "5")))
@given(schedule=st.lists(plans, min_size=2, max_size=4), seed=st.integers(0, 9999))
def test_no_schedule_changes_an_answer_or_a_state(
    other: tuple[TargetModel, Answers], schedule: list[Plan], seed: int
) -> None:
    with joining(after=seed % 4, most_padding=1.0 if seed % 5 == 0 else 99.0):
        run_schedule(*other, schedule, seed)


def run_schedule(model: TargetModel, alone: Answers, schedule: list[Plan], seed: int) -> None:
    chance = Random(seed)
    batch = Batch(model, may_join=lambda _: chance.random() < 0.8)
    answers = [alone(plan.number, plan.sampling) for plan in schedule]
    members = [Answer(plan, model, answer) for plan, answer in zip(schedule, answers, strict=True)]
    waiting = {index: one.begin() for index, one in enumerate(members)}
    turn = 0
    while waiting:
        turn += 1
        chosen = [
            index
            for index in chance.sample(sorted(waiting), len(waiting))
            if turn >= members[index].plan.joins_at and chance.random() >= 0.2
        ]
        for index in [one for one in chosen if members[one].is_done]:
            waiting.pop(index).close()
            members[index].cache.separate()
            chosen.remove(index)
        outcomes = batch.advance([waiting[index] for index in chosen])
        for index, outcome in zip(chosen, outcomes, strict=True):
            if outcome is not None:
                assert isinstance(outcome, Round), outcome
                members[index].rounds += 1
                members[index].emitted.extend(outcome.tokens)
    for member, answer in zip(members, answers, strict=True):
        assert member.emitted == answer[: len(member.emitted)]
        assert len(member.emitted) == LONGEST or member.rounds == member.plan.cancelled_after
        assert member.is_in_order()
