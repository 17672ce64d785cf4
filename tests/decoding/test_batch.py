"""Several sequences in one forward: each emits what it emits alone, its cache stays in order."""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.base import scaled_dot_product_attention

from akunu_py.backend import find_backend
from akunu_py.cache.batched import BatchedRows, batched_layers
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.layers import LayerCache
from akunu_py.decoding.batch import Batch, BatchedTarget
from akunu_py.decoding.batch_trial import why_not_batched
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, decode
from akunu_py.decoding.scheduler import Phase
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.engine import Engine
from akunu_py.errors import CacheError, ContextOverflowError, InvalidRequestError
from akunu_py.loading import load_target
from akunu_py.model import TargetModel
from akunu_py.options import Grammar, Options, Sampling
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.planner import FixedPlanner
from akunu_py.planning.shared_rows import MAX_BATCH_ROWS
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Round
from tests.fakes import OracleDrafter, rounds_of
from tests.planning.curves import FLAT, LINEAR
from tests.tiny_model import write_tiny_model

LONGEST = 9
SMALLEST: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16, "vocab_size": 64,
    "num_attention_heads": 2, "head_dim": 8,
}  # fmt: skip
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.9, top_p=0.9, seed=5),
    Sampling(temperature=0.8, top_k=20, seed=2, repetition_penalty=1.2),
    Sampling(presence_penalty=0.8, repetition_penalty=1.3, repetition_context_size=6),
)


@cache
def prompt_of(number: int) -> list[int]:
    draw = Random(number)
    return [draw.randrange(64) for _ in range(1 + 7 * number)]


@pytest.fixture(scope="module")
def model(tiny_model_dir: Path) -> TargetModel:
    return load_target(str(tiny_model_dir), find_backend())


@pytest.fixture(scope="module", params=["fused", "as mlx-lm has it"])
def smallest(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TargetModel:
    """A model whose forwards take no time."""
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "smallest", **SMALLEST)
    model = load_target(str(folder), find_backend())
    if request.param != "fused":
        model.network = model.original
    return model


Answers = Callable[[int, Sampling], list[int]]


@pytest.fixture(scope="module")
def alone(smallest: TargetModel) -> Answers:
    """What plain decoding answers without company."""
    model = smallest

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
class Member:
    """A running sequence, in a cache that has room for little and grows."""

    plan: Plan
    model: TargetModel
    batch: Batch
    answer: list[int]
    cache: KVCache = field(init=False)
    emitted: list[int] = field(default_factory=list)
    rounds: int = 0

    def run(self) -> Iterator[Round]:
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
        with self.batch.member(target) as member:
            yield from decode(member, session, prompt[-1], Limits(LONGEST, frozenset()))

    def is_in_order(self) -> bool:
        """Whether its cache holds what a fresh prefill of its tokens holds."""
        tokens = [*prompt_of(self.plan.number), *self.emitted][:-1]
        self.cache.rollback(min(len(tokens), self.cache.length))
        tokens = tokens[: self.cache.length]
        fresh = self.model.make_cache(len(tokens))
        self.model.prefill(tokens, fresh)
        return all(
            np.allclose(own, other, atol=1e-3)
            for mine, theirs in zip(
                self.cache.rows(0, len(tokens)), fresh.rows(0, len(tokens)), strict=True
            )
            for own, other in zip(mine, theirs, strict=True)
        )


@contextmanager
def joining(after: int) -> Iterator[None]:
    """Caches are joined after so many steps together, whatever their lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("akunu_py.decoding.batch._JOIN_FROM", 2)
        patch.setattr("akunu_py.decoding.batch._JOIN_AFTER", after)
        patch.setattr("akunu_py.cache.batched._MOST_PADDING", 99.0)
        yield


@settings(max_examples=100)
@given(st.lists(plans, min_size=2, max_size=4), st.integers(0, 9999))
def test_no_schedule_changes_an_answer_or_a_cache(
    smallest: TargetModel, alone: Answers, schedule: list[Plan], seed: int
) -> None:
    with joining(after=seed % 4):
        run_schedule(smallest, alone, schedule, seed)


def run_schedule(model: TargetModel, alone: Answers, schedule: list[Plan], seed: int) -> None:
    chance, batch = Random(seed), Batch(model)
    answers = [alone(plan.number, plan.sampling) for plan in schedule]
    members = [
        Member(plan, model, batch, answer) for plan, answer in zip(schedule, answers, strict=True)
    ]
    running = {index: member.run() for index, member in enumerate(members)}
    turn = 0
    with ExitStack() as stack:
        for rounds in running.values():
            stack.callback(rounds.close)  # type: ignore[attr-defined]
        while running:
            turn += 1
            for index in chance.sample(sorted(running), len(running)):
                member = members[index]
                if turn < member.plan.joins_at or chance.random() < 0.2:
                    continue
                done = member.rounds >= member.plan.cancelled_after
                outcome = None if done else next(running[index], None)
                if outcome is None:
                    running.pop(index).close()  # type: ignore[attr-defined]
                    continue
                member.rounds += 1
                member.emitted.extend(outcome.tokens)
    for member, answer in zip(members, answers, strict=True):
        assert member.emitted == answer[: len(member.emitted)]
        assert len(member.emitted) == LONGEST or member.rounds == member.plan.cancelled_after
        assert member.is_in_order()


JOINED = [
    {},
    {"num_key_value_heads": 1, "num_attention_heads": 4},
    {"torch_dtype": "bfloat16"},
]


@pytest.mark.parametrize("changes", JOINED, ids=["heads of their own", "shared heads", "bfloat16"])
def test_joined_caches_serve_steps_and_drafts_as_separate_ones(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = write_tiny_model(tmp_path / "joined", **{**SMALLEST, **changes})
    model = load_target(str(folder), find_backend())
    atol = 0.05 if model.is_coarse else 1e-4
    joined, separate = ([model.make_cache(16) for _ in range(3)] for _ in range(2))
    for held in (joined, separate):
        for number, one in enumerate(held):
            model.prefill(prompt_of(1)[: 5 + number], one)
    joined[0].join(joined[1:])
    for counts in ((1, 1, 1), (1, 1, 1), (3, 1, 2), (1, 1, 1), (2, 1)):
        held = joined[: len(counts)]
        rows = [mx.arange(count) + 7 for count in counts]
        assert BatchedRows(counts, held).are_joined is (counts == (1, 1, 1))
        found = model.forward_batch(mx.concatenate(rows), held, counts)
        alone = [model.forward(own, one) for own, one in zip(rows, separate, strict=False)]
        assert mx.allclose(found, mx.concatenate(alone), atol=atol)
        for one in (held[0], separate[0]):
            one.rollback(one.length - counts[0] + 1)
    joined[1].grow(40)
    assert joined[1].group is None
    joined[0].separate()
    for own, other in zip(joined, separate, strict=True):
        for number in range(3):
            token = mx.array([number])
            assert mx.allclose(model.forward(token, own), model.forward(token, other), atol=atol)
    joined[2].rollback(5)
    with pytest.raises(ContextOverflowError):
        model.forward(mx.arange(12), joined[2])


def test_a_window_over_joined_caches_ends_where_it_does_over_each(smallest: TargetModel) -> None:
    caches = [smallest.make_cache(16) for _ in range(3)]
    for number, one in enumerate(caches):
        smallest.prefill(prompt_of(1)[: 4 + number], one)
    kv_heads = caches[0].layers[0].keys.shape[1]
    keys, values = (mx.random.normal((3, kv_heads, 1, 8)) for _ in range(2))
    queries = mx.random.normal((3, 2, 1, 8))
    found = []
    for _ in range(2):
        (layer, *_) = batched_layers([one.layers for one in caches], BatchedRows([1, 1, 1], caches))
        mask = layer.make_mask(1, window_size=3)
        layer.update_and_fetch(keys, values)
        inputs = queries, keys, values
        found.append(layer.attend(scaled_dot_product_attention, inputs, 0.5, mask))
        for one in caches:
            one.layers[0].rollback(one.length)
        caches[0].join(caches[1:])
    assert mx.allclose(found[0], found[1], atol=1e-5)


def test_steps_together_join_caches_until_a_sequence_leaves(model: TargetModel) -> None:
    batch = Batch(model)
    with joining(after=1), ExitStack() as stack:
        members = members_of(model, batch, stack, 2)
        with ExitStack() as short:
            members += members_of(model, batch, short, 1)
            caches = [member._target.cache for member in members]
            for _ in range(3):
                for member, step in [(each, each.submit(7, NO_DRAFT)) for each in members]:
                    member.read(step)
            assert all(one.group is caches[0].group is not None for one in caches)
        assert caches[2].group is None
        for member, step in [(each, each.submit(7, NO_DRAFT)) for each in members[:2]]:
            member.read(step)
    assert [one.group for one in caches] == [None] * 3


def step_all(members: list[BatchedTarget], times: int) -> None:
    for _ in range(times):
        for member, step in [(each, each.submit(7, NO_DRAFT)) for each in members]:
            member.read(step)


def test_joined_buffers_are_counted_and_stay_for_no_half_of_their_caches(
    model: TargetModel,
) -> None:
    batch = Batch(model)
    with joining(after=1), ExitStack() as stack:
        stays = members_of(model, batch, stack, 3)
        caches = [member._target.cache for member in stays]
        with ExitStack() as second:
            with ExitStack() as first:
                members = [*stays, *members_of(model, batch, second, 2)]
                step_all([*members, *members_of(model, batch, first, 1)], 3)
                assert caches[0].group is not None
                assert caches[0].group.size == 6
            counted = sum(one._target.cache.nbytes for one in members)
            assert counted == pytest.approx(held_by(members), abs=len(members))
            assert all(one.group is caches[0].group is not None for one in caches)
        assert [one.group for one in caches] == [None] * 3
        assert sum(one.nbytes for one in caches) == held_by(stays)


def held_by(members: list[BatchedTarget]) -> int:
    """The bytes of the buffers of some sequences."""
    layers = [layer for member in members for layer in member._target.cache.layers]
    buffers = {layer.held for layer in layers}
    return sum(held.keys.nbytes + held.values.nbytes for held in buffers)


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_no_memory_to_leave_joined_caches_costs_no_answer(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    requests = [(prompt_of(at), Options(8 * at, drafter="none")) for at in (2, 4, 1, 3)]
    alone, failing = [engine.generate(*request) for request in requests], count()
    separate = LayerCache.separate

    def fail(layer: LayerCache) -> None:
        if layer.held.seats > 1 and next(failing) >= fails_at:
            raise MemoryError
        separate(layer)

    monkeypatch.setattr(LayerCache, "separate", fail)
    with joining(after=1):
        answers = [engine.begin(*request) for request in requests]
        told: list[list[int]] = [[] for _ in answers]
        while any(answer.phase is not Phase.DONE for answer in answers):
            for answer, tokens in zip(answers, told, strict=True):
                if answer.phase is not Phase.DONE and (event := answer.advance()) is not None:
                    tokens.extend(event.tokens)
    assert next(failing) > fails_at
    assert told == [one.token_ids for one in alone]


def members_of(
    model: TargetModel, batch: Batch, stack: ExitStack, count: int
) -> list[BatchedTarget]:
    """Some greedy sequences that decode together."""
    found = []
    for number in range(count):
        held = model.make_cache(128)
        model.prefill(prompt_of(number)[:-1], held)
        target = ModelTarget(model, held, Sampler(Sampling()), 8)
        found.append(stack.enter_context(batch.member(target)))
    return found


GUESS = Draft((1, 2, 3), "guess", accept_probs=(0.5, 0.5, 0.5))


def verified(member: BatchedTarget, others: list[BatchedTarget], draft: Draft) -> int:
    """How many tokens of a draft a batched forward verifies."""
    pending = member.submit(7, draft)
    waiting = [other.submit(7, NO_DRAFT) for other in others]
    drafted = member.read(pending).drafted
    for other, forward in zip(others, waiting, strict=True):
        other.read(forward)
    return drafted


def known(costs: LiveCosts, sequences: int) -> LiveCosts:
    assert sequences > 1
    return costs


def test_drafts_are_shortened_where_rows_cost_too_much(model: TargetModel) -> None:
    for curve, wanted in ((FLAT, 3), (LINEAR, 0)):
        costs = LiveCosts(curve, MAX_BATCH_ROWS)
        with ExitStack() as stack:
            first, *others = members_of(model, Batch(model, partial(known, costs)), stack, 3)
            assert verified(first, others, GUESS) == wanted


def test_sampled_drafts_are_not_shortened(model: TargetModel) -> None:
    """Their length must not depend on their tokens."""
    costs = LiveCosts(LINEAR, MAX_BATCH_ROWS)
    rows = np.full((3, model.vocabulary_size), 1 / model.vocabulary_size, dtype=np.float32)
    with ExitStack() as stack:
        first, *others = members_of(model, Batch(model, partial(known, costs)), stack, 2)
        assert verified(first, others, replace(GUESS, probabilities=rows)) == 3


def test_costs_are_learnt_from_batched_rounds(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akunu_py.decoding.batch._NO_WAIT", -1.0)  # however late the host comes
    costs = LiveCosts(LINEAR, MAX_BATCH_ROWS)
    before = costs.verify_table(0, 2)
    with ExitStack() as stack:
        first, *others = members_of(model, Batch(model, partial(known, costs)), stack, 2)
        verified(first, others, NO_DRAFT)
    assert costs.verify_table(0, 2) != before


@pytest.mark.parametrize("kind", [CacheError, RuntimeError])
def test_an_error_of_one_sequence_is_its_own(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("no memory")

    with ExitStack() as stack:
        first, second = members_of(model, Batch(model), stack, 2)
        monkeypatch.setattr(second._target, "begin", fail)
        waiting = first.submit(7, NO_DRAFT), second.submit(7, NO_DRAFT)
        assert len(first.read(waiting[0]).tokens) == 1
        with pytest.raises(kind):
            second.read(waiting[1])


def test_a_sequence_that_leaves_is_in_no_further_forward(model: TargetModel) -> None:
    batch = Batch(model)
    with ExitStack() as stack:
        first, second = members_of(model, batch, stack, 2)
        with ExitStack() as short:
            (third,) = members_of(model, batch, short, 1)
            for member in (third, first):
                member.submit(7, NO_DRAFT)
        second.submit(7, NO_DRAFT)
        assert (batch.forwards, batch.rows) == (1, 2)


def test_a_forward_begins_as_soon_as_all_wait_for_it(model: TargetModel) -> None:
    batch = Batch(model)
    with ExitStack() as stack:
        first, second = members_of(model, batch, stack, 2)
        waiting = first.submit(7, NO_DRAFT)
        assert batch.forwards == 0
        second.submit(7, GUESS)
        assert (batch.forwards, batch.rows) == (1, 5)
        first.read(waiting)
        assert batch.forwards == 1


def test_steps_are_submitted_ahead_if_all_want_them(model: TargetModel) -> None:
    batch = Batch(model)
    with ExitStack() as stack:
        members = members_of(model, batch, stack, 3)
        steps = [member.submit(7, NO_DRAFT) for member in members]
        steps[0].step_gain = steps[1].step_gain = 0.2
        assert members[0].submit_step_after(steps[0]) is None, (
            "the third has not said what it gains"
        )
        steps[2].step_gain = -0.5
        assert members[0].submit_step_after(steps[0]) is None, "it would lose more"
        steps[2].step_gain = -0.3
        ahead = [
            member.submit_step_after(step) for member, step in zip(members, steps, strict=True)
        ]
        assert (batch.forwards, batch.rows) == (2, 6), "before any of them was read"
        for member, step, after in zip(members, steps, ahead, strict=True):
            token = member.read(step).tokens[-1]
            length = member.length
            assert after is not None
            pipelined = member.read(after)
            assert pipelined.pipelined
            member.rollback(length - 1)
            assert member.read(member.submit(token, NO_DRAFT)).tokens == pipelined.tokens


def test_a_step_ahead_that_nobody_reads_keeps_no_cache(model: TargetModel) -> None:
    with ExitStack() as stack:
        members = members_of(model, Batch(model), stack, 2)
        steps = [member.submit(7, NO_DRAFT) for member in members]
        for step in steps:
            step.step_gain = 0.1
        ahead = [
            member.submit_step_after(step) for member, step in zip(members, steps, strict=True)
        ]
        members[0].read(steps[0])
    cache = ref(members[0]._target.cache)
    gc.collect()
    gc.disable()
    try:
        del members, steps, step, ahead, stack
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({}, 16),
        ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, None),
    ],
    ids=["a bounded cache", "sliding windows"],
)
@pytest.mark.parametrize("counts", [(1, 1), (3, 2)], ids=["steps", "drafts"])
def test_windows_end_in_company_where_they_end_alone(
    tmp_path: Path, changes: dict[str, Any], bound: int | None, counts: tuple[int, int]
) -> None:
    folder = write_tiny_model(tmp_path / "windows", **SMALLEST, **changes)
    model = load_target(str(folder), find_backend(), max_kv_size=bound)
    assert why_not_batched(model) is None
    prompts = prompt_of(4), prompt_of(1)

    def caches() -> list[KVCache]:
        held = [model.make_cache(64) for _ in prompts]
        for prompt, one in zip(prompts, held, strict=True):
            model.prefill(prompt, one)
        return held

    tokens = [mx.arange(count) for count in counts]
    together = model.forward_batch(mx.concatenate(tokens), caches(), counts)
    alone = [model.forward(rows, held) for rows, held in zip(tokens, caches(), strict=True)]
    assert mx.allclose(together, mx.concatenate(alone), atol=1e-4)


def test_who_is_left_alone_is_pipelined_again(model: TargetModel) -> None:
    with ExitStack() as stack:
        (first,) = members_of(model, Batch(model), stack, 1)
        alone = first.submit(7, NO_DRAFT)
        with ExitStack() as short:
            members_of(model, first._batch, short, 1)
            assert first.submit_step_after(alone) is None, "the next forward is a common one"
            waiting = first.submit(first.read(alone).tokens[-1], NO_DRAFT)
        assert first.submit_step_after(waiting) is None, "it has not begun"
        step = first.submit(first.read(waiting).tokens[-1], NO_DRAFT)
        step.step_gain = 0.1
        ahead = first.submit_step_after(step)
        assert ahead is not None
        first.read(step)
        assert len(first.read(ahead).tokens) == 1


PROMPTS = ("def main():\n", '{"name": "', "one two three one two", "import sys\nimport")


@pytest.mark.parametrize(
    "options",
    [
        Options(24),
        Options(24, sampling=Sampling(temperature=0.9, seed=4)),
        Options(24, sampling=Sampling(temperature=0.7, top_p=0.8, min_p=0.02, seed=9)),
        Options(24, sampling=Sampling(repetition_penalty=1.3, frequency_penalty=0.4)),
        Options(24, num_draft_tokens=5, logprobs=3),
        Options(24, grammar=Grammar("regex", "[a-z]{3,9}(, [a-z]{2,5}){1,4}")),
        Options(24, stop=("e",), drafter="ngram"),
        Options(24, drafter="none"),
    ],
)
def test_a_batch_answers_as_one_after_another(engine: Engine, options: Options) -> None:
    alone = [engine.generate(prompt, options) for prompt in PROMPTS]
    engine.reset()
    before = engine.batch.forwards
    together = engine.generate_batch(PROMPTS, options)
    assert engine.batch.forwards > before
    for own, other in zip(alone, together, strict=True):
        assert other.token_ids == own.token_ids
        assert (other.text, other.finish_reason) == (own.text, own.finish_reason)
        for mine, theirs in zip(own.logprobs, other.logprobs, strict=True):
            assert theirs.logprob == pytest.approx(mine.logprob, abs=1e-3)
            assert [token for token, _ in theirs.alternatives] == [
                token for token, _ in mine.alternatives
            ]
    again = engine.generate(PROMPTS[0] + together[0].text, options)
    assert again.stats.cached_tokens > 0


def test_exact_answers_have_forwards_of_their_own(engine: Engine) -> None:
    options = Options(12, exact=True)
    before = engine.batch.forwards
    together = engine.generate_batch(PROMPTS[:2], options)
    assert engine.batch.forwards == before
    engine.reset()
    assert [one.token_ids for one in together] == [
        engine.generate(prompt, options).token_ids for prompt in PROMPTS[:2]
    ]


def test_a_batch_of_none_and_a_wrong_prompt(engine: Engine) -> None:
    assert engine.generate_batch([]) == []
    with pytest.raises(InvalidRequestError):
        engine.generate_batch(["a", ""])
    with pytest.raises(InvalidRequestError, match="parallel=0"):
        engine.generate_batch(["a"], parallel=0)
    assert engine.generate("a", Options(2)).token_ids
