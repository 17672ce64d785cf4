"""Several sequences in one forward: each emits what it emits alone, and leaves when it likes."""

import gc
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.batch import Batch, BatchedTarget
from akunu_py.decoding.batch_trial import why_not_batched
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.engine import Engine
from akunu_py.errors import CacheError, InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Grammar, ModelOptions, Options, Sampling
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.theory import MAX_BATCH_ROWS
from tests.decoding.company import SMALLEST, members_of, prompt_of
from tests.planning.curves import FLAT, LINEAR
from tests.tiny_model import write_tiny_model

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
    monkeypatch.setattr("akunu_py.decoding.batch.NO_WAIT", -1.0)  # however late the host comes
    costs = LiveCosts(LINEAR, MAX_BATCH_ROWS)
    with ExitStack() as stack:
        first, *others = members_of(model, Batch(model, partial(known, costs)), stack, 2)
        verified(first, others, NO_DRAFT)
    assert costs.has_observed(2, 0)


@pytest.mark.parametrize("kind", [CacheError, RuntimeError])
def test_an_error_of_one_sequence_is_its_own(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("no memory")

    with ExitStack() as stack:
        first, second = members_of(model, Batch(model), stack, 2)
        monkeypatch.setattr(second.target, "begin", fail)
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
    cache = ref(members[0].target.cache)
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
    model = load_target(ModelOptions(str(folder), max_kv_size=bound), find_backend())
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
    batch = Batch(model)
    with ExitStack() as stack:
        (first,) = members_of(model, batch, stack, 1)
        alone = first.submit(7, NO_DRAFT)
        with ExitStack() as short:
            members_of(model, batch, short, 1)
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


def test_a_forward_of_several_sequences_is_shared_by_all_but_one(engine: Engine) -> None:
    batch = engine.batch
    forwards, rows = batch.forwards, batch.rows
    together = engine.generate_batch(PROMPTS, Options(24, drafter="none"))
    shared = sum(one.stats.shared_forwards for one in together)
    assert shared == (batch.rows - rows) - (batch.forwards - forwards) > 0


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
