"""Several sequences in one forward: each emits what it emits alone, and leaves when it likes."""

import gc
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import sleep
from typing import Any
from weakref import ref

import mlx.core as mx
import numpy as np
import pytest

from akunu_py.cache.batched import BatchedRows
from akunu_py.cache.kv_cache import KVCache
from akunu_py.decoding.batch import Batch, why_not_batched
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.engine import Engine
from akunu_py.errors import CacheError, InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Grammar, ModelOptions, Options
from akunu_py.planning.costs import LiveCosts
from akunu_py.planning.theory import MAX_BATCH_ROWS
from akunu_py.rounds import Round
from tests.architectures import make_model
from tests.decoding.company import SMALLEST, Repeating, joining, member_of, prompt_of, rounds_of
from tests.planning.curves import FLAT, LINEAR
from tests.tiny_model import write_tiny_model

GUESS = Draft((1, 2, 3), "guess", accept_probs=(0.5, 0.5, 0.5))


def known(costs: LiveCosts, sequences: int) -> LiveCosts:
    assert sequences > 1
    return costs


def test_drafts_are_shortened_where_rows_cost_too_much(model: TargetModel) -> None:
    for curve, wanted in ((FLAT, 3), (LINEAR, 0)):
        batch = Batch(model, partial(known, LiveCosts(curve, MAX_BATCH_ROWS)))
        members = [member_of(model, 0, GUESS), member_of(model, 1), member_of(model, 2)]
        assert [one.drafted for one in rounds_of(batch, members)] == [wanted, 0, 0]


def test_sampled_drafts_are_not_shortened(model: TargetModel) -> None:
    """Their length must not depend on their tokens."""
    batch = Batch(model, partial(known, LiveCosts(LINEAR, MAX_BATCH_ROWS)))
    rows = np.full((3, model.vocabulary_size), 1 / model.vocabulary_size, dtype=np.float32)
    sampled = member_of(model, 0, replace(GUESS, probabilities=rows))
    assert rounds_of(batch, [sampled, member_of(model, 1)])[0].drafted == 3


@pytest.mark.parametrize(("draft", "rows"), [(NO_DRAFT, 2), (GUESS, 5)])
def test_costs_are_learnt_from_batched_rounds(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, draft: Draft, rows: int
) -> None:
    monkeypatch.setattr("akunu_py.rounds.NO_WAIT", -1.0)  # however late the host comes
    costs = LiveCosts(FLAT, MAX_BATCH_ROWS)
    members = [member_of(model, 0, draft), member_of(model, 1)]
    batch = Batch(model, partial(known, costs))
    rounds_of(batch, members)
    assert not costs.has_observed(rows, 0), "nobody knows when the first began"
    rounds_of(batch, members, 2)
    assert costs.has_observed(rows, 0)


def test_the_time_of_a_round_with_a_forward_of_another_sequence_says_nothing(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("akunu_py.rounds.NO_WAIT", -1.0)
    costs = LiveCosts(FLAT, MAX_BATCH_ROWS)
    members = [member_of(model, 0, GUESS), member_of(model, 1)]
    batch, other = Batch(model, partial(known, costs)), member_of(model, 2)
    for _ in range(3):
        rounds_of(batch, members)
        other.advance()
    assert not costs.has_observed(5, 0)


@pytest.mark.parametrize("kind", [CacheError, RuntimeError])
def test_an_error_of_one_sequence_is_its_own(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise kind("no memory")

    batch, members = Batch(model), [member_of(model), member_of(model, 1)]
    monkeypatch.setattr(members[1].target, "begin", fail)
    good, failed = batch.advance(members)
    assert isinstance(good, Round)
    assert len(good.tokens) == 1
    assert isinstance(failed, kind)


def test_a_sequence_that_cannot_go_on_hands_over_what_it_has(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CacheError("no memory")

    for count in (1, 2):
        batch, members = Batch(model), [member_of(model, number) for number in range(count)]
        for one in members:
            one.submit()
            monkeypatch.setattr(one.target, "begin", fail)
        assert all(isinstance(one, Round) for one in batch.advance(members))
        assert all(isinstance(one, CacheError) for one in batch.advance(members))


def test_a_step_ahead_that_fails_loses_no_round(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CacheError("no memory")

    for count in (1, 2):
        batch = Batch(model)
        members = [member_of(model, number, gain=0.1) for number in range(count)]
        for one in members:
            monkeypatch.setattr(one.target, "begin_step_after", fail)
        assert all(isinstance(one, Round) for one in batch.advance(members))
        assert all(isinstance(one, CacheError) for one in batch.advance(members))


def test_a_newcomer_joins_the_next_pass_of_the_others(model: TargetModel) -> None:
    batch, members = Batch(model), [member_of(model), member_of(model, 1)]
    rounds_of(batch, members)
    members.append(member_of(model, 2))
    before = model.forwards
    *others, newest = batch.advance(members)
    assert all(isinstance(one, Round) for one in others)
    assert newest is None
    assert model.forwards == before + 1, "one pass for all three"
    rounds_of(batch, members)


def test_a_round_is_one_forward_over_what_all_want(model: TargetModel) -> None:
    batch = Batch(model)
    members = [member_of(model), member_of(model, 1, GUESS), member_of(model, 2)]
    rounds = rounds_of(batch, members)
    assert [one.is_counted for one in rounds] == [False, True, True]
    assert (batch.forwards, batch.rows) == (2, 12), "the second is in flight"
    rounds_of(batch, members[:2])
    assert (batch.forwards, batch.rows) == (3, 17)


def test_steps_are_submitted_ahead_if_all_gain_by_them_together(model: TargetModel) -> None:
    for gains, is_pipelined in (
        ((0.2, 0.2, -inf), False),
        ((0.2, 0.2, -0.5), False),
        ((0.2, 0.2, -0.3), True),
    ):
        batch = Batch(model)
        members = [member_of(model, number, gain=gain) for number, gain in enumerate(gains)]
        together = [rounds_of(batch, members) for _ in range(3)]
        assert {one.pipelined for one in together[-1]} == {is_pipelined}
        assert batch.forwards == 4
        alone = Batch(model)
        for number, own in enumerate(zip(*together, strict=True)):
            again = [member_of(model, number)]
            assert [one.tokens for one in own] == [
                rounds_of(alone, again)[0].tokens for _ in range(3)
            ]


def test_a_draft_that_pays_ends_the_pipeline_of_those_that_gain_by_it(model: TargetModel) -> None:
    batch = Batch(model, partial(known, LiveCosts(FLAT, MAX_BATCH_ROWS)))
    copies = Repeating(NO_DRAFT)
    members = [
        member_of(model, 0, copies, gain=0.2),
        *(member_of(model, number, gain=0.2) for number in (1, 2)),
    ]
    assert rounds_of(batch, members, 3)[0].pipelined
    copies.draft = replace(GUESS, accept_probs=(0.95, 0.95, 0.95))
    rounds_of(batch, members, 2)
    assert rounds_of(batch, members)[0].drafted == 3


class Noting(LiveCosts):
    """Notes the longest time that it is told."""

    longest_s = 0.0

    def observe(self, tokens: int, seconds: float, context: int) -> None:
        self.longest_s = max(self.longest_s, seconds)


@pytest.mark.parametrize("moves", ["join", "separate"])
def test_no_forward_is_charged_for_what_moves_caches(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    moved, move = [0], getattr(KVCache, moves)

    def slow(*caches: Any) -> None:
        moved[0] += 1
        sleep(0.5)
        move(*caches)

    costs = Noting(FLAT, MAX_BATCH_ROWS)
    batch = Batch(model, partial(known, costs))
    members = [member_of(model, number) for number in range(4)]
    monkeypatch.setattr("akunu_py.decoding.batch._OBSERVE_EVERY", 1)
    monkeypatch.setattr(KVCache, moves, slow)
    with joining(after=1):
        rounds_of(batch, members, 4)
        for one in members[2:]:
            one.target.cache.separate()
        rounds_of(batch, members[:2], 6)
    assert moved[0] > 2 * (moves == "separate")
    assert 0.0 < costs.longest_s < 0.5


def test_a_pause_of_the_caller_is_no_time_of_who_is_left_alone(model: TargetModel) -> None:
    batch, members = Batch(model), [member_of(model, number) for number in (1, 2)]
    rounds_of(batch, members, 3)
    for _ in range(2):
        sleep(0.2)
        (alone,) = rounds_of(batch, members[:1])
        assert alone.seconds is None or alone.seconds < 0.2


def test_a_step_ahead_that_nobody_reads_keeps_no_cache(model: TargetModel) -> None:
    batch, members = Batch(model), [member_of(model, gain=0.1), member_of(model, 1, gain=0.1)]
    rounds_of(batch, members)
    cache = ref(members[0].target.cache)
    gc.collect()
    gc.disable()
    try:
        del members[0]
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


def test_those_that_are_padded_together_are_of_about_the_same_size() -> None:
    model = make_model("deepseek_v3")
    sizes = (1024, 128, 4096, 128, 768)
    alone = [rounds_of(Batch(model), [member_of(model, one)], 3) for one in range(5)]
    batch = Batch(model)
    members = [member_of(model, number, capacity=size) for number, size in enumerate(sizes)]
    found = rounds_of(batch, members, 3)
    assert [one.tokens for one in found] == [one.tokens for (one,) in alone]
    assert [one.takes_turns for one in members] == [False, False, True, False, False]
    groups = [one.target.cache.group for one in members]
    assert groups[1] is groups[3] is not groups[0] is groups[4] is not groups[2] is None
    assert not rounds_of(batch, members[2:3])[0].is_counted
    assert not members[2].takes_turns, "there is nobody else"


def test_those_that_are_padded_are_joined_anew_when_one_leaves() -> None:
    """Else all keys would be copied into one array in every step."""
    model = make_model("deepseek_v3")
    members = [member_of(model, number, capacity=128) for number in range(3)]
    batch = Batch(model)
    rounds_of(batch, members, 2)
    members.pop(1).target.cache.separate()
    rounds_of(batch, members, 2)
    caches = [one.target.cache for one in members]
    assert BatchedRows([1, 1], caches, pads=True).are_joined
    assert not BatchedRows([1, 1], [*caches[:1], model.make_cache(1)], pads=True).are_joined


def test_who_has_no_memory_to_be_padded_takes_turns() -> None:
    model = make_model("deepseek_v3")
    members = [member_of(model, number, capacity=128 + number) for number in range(3)]
    batch = Batch(model, may_join=lambda caches: len(caches) < 3)
    rounds_of(batch, members)
    assert [one.takes_turns for one in members] == [False, False, True]


def test_without_memory_for_joined_caches_rows_are_shared_as_before(model: TargetModel) -> None:
    members = [member_of(model), member_of(model, 1)]
    with joining(after=0):
        rounds_of(batch := Batch(model, may_join=lambda _: False), members, 3)
    assert batch.forwards > 0
    assert not any(one.takes_turns or one.target.cache.group for one in members)


def test_who_is_left_alone_is_pipelined_again(model: TargetModel) -> None:
    batch = Batch(model)
    members = [member_of(model, gain=0.1), member_of(model, 1)]
    assert not rounds_of(batch, members, 2)[0].pipelined
    assert rounds_of(batch, members[:1], 2)[0].pipelined
    assert not rounds_of(batch, members, 2)[0].pipelined


PROMPTS = ("def main():\n", '{"name": "', "one two three one two", "import sys\nimport")


@pytest.mark.parametrize(
    "options",
    [
        Options(24),
        Options(24, temperature=0.9, seed=4),
        Options(24, temperature=0.7, top_p=0.8, min_p=0.02, seed=9),
        Options(24, repetition_penalty=1.3, frequency_penalty=0.4),
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
    with pytest.raises(InvalidRequestError, match="`parallel` must be 1 or more"):
        engine.generate_batch(["a"], parallel=0)
    assert engine.generate("a", Options(2)).token_ids
