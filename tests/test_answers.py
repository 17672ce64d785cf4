"""Several answers of one engine under way: each is as it is alone, and they share prefixes."""

from pathlib import Path
from random import Random

import pytest

import akunu_py
from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError, InvalidRequestError
from akunu_py.events import Completion, EventStream
from akunu_py.options import Grammar, Options
from akunu_py.rounds import Finish
from akunu_py.scheduler import Scheduler
from akunu_py.sequence import Sequence

PROMPTS = [
    Random(seed).choices(range(32, 127), k=length)
    for seed, length in enumerate((40, 150, 3, 90, 200))
]
MIXED = (
    Options(30),
    Options(25, temperature=1.0, seed=3, top_p=0.9),
    Options(20, logprobs=2),
    Options(25, repetition_penalty=1.3, frequency_penalty=0.5),
    Options(12, grammar=Grammar("regex", "[a-z]{4,9}")),
    Options(15, drafter="none"),
    Options(10, logprobs=1, scores_prompt=True),
    Options(15, num_draft_tokens=3),
)


@pytest.fixture
def stepped(tiny_model_dir: Path) -> Engine:
    """An engine with short chunks."""
    return akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), prefill_step_size=16))


def told(completion: Completion) -> tuple[object, ...]:
    """What a client gets of an answer, log-probabilities rounded."""
    logprobs = [(one.token, round(one.logprob, 2)) for one in completion.logprobs]
    return completion.token_ids, completion.text, completion.finish_reason, logprobs


def test_answers_in_turn_are_as_they_are_alone(stepped: Engine) -> None:
    asked = [(PROMPTS[at % len(PROMPTS)], options) for at, options in enumerate(MIXED)]
    alone = []
    for prompt, options in asked:
        stepped.reset()
        alone.append(told(stepped.generate(prompt, options)))
    for parallel in (1, 3, len(asked)):
        stepped.reset()
        together = stepped.generate_batch([Sequence(*one) for one in asked], parallel=parallel)
        assert [told(completion) for completion in together] == alone
        assert not any(slot.busy for slot in stepped.slots)


def test_a_batch_ends_with_its_first_error(stepped: Engine) -> None:
    done = stepped.model.forwards
    with pytest.raises(ContextOverflowError, match=r"^Prompt 2 of 2: ") as found:
        stepped.generate_batch([PROMPTS[0], [1] * 100_000], Options(20))
    assert found.value.limit
    assert stepped.model.forwards == done
    assert not any(slot.busy for slot in stepped.slots)
    assert stepped.generate(PROMPTS[0], Options(5)).token_ids


def test_equal_prompts_are_computed_once(stepped: Engine) -> None:
    options = Options(8, temperature=1.0)
    batch = stepped.generate_batch([PROMPTS[1]] * 3, options, parallel=3)
    missing = len(PROMPTS[1]) - 1
    assert [completion.stats.cached_tokens for completion in batch] == [0, missing, missing]
    assert stepped.counters.prefill_tokens == missing


@pytest.mark.parametrize("lead", range(1, 3))
def test_answers_that_grow_in_one_round_keep_within_memory(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, lead: int
) -> None:
    """The second has more tokens and fewer rounds, so that both caches are full at once."""
    sizes = akunu_py.load(str(tiny_model_dir)).model.cache_bytes
    small, large = sizes(512), sizes(1024)
    engine = akunu_py.load(
        akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_bytes=int(small + large))
    )
    grow, most = PrefixPool.grow, 0

    def watched(pool: PrefixPool, slot: PrefixSlot, tokens: int) -> None:
        nonlocal most
        grow(pool, slot, tokens)
        most = max(most, sum(one.cache.nbytes for one in pool._slots.values() if one.busy))

    monkeypatch.setattr(PrefixPool, "grow", watched)
    plain = Options(40, drafter="none", logit_bias=((2, -100.0),))
    prompts = [Random(at).choices(range(32, 127), k=490 + at * lead) for at in range(2)]
    batch = engine.generate_batch(prompts, plain, parallel=2)
    assert [len(one.token_ids) for one in batch] == [40, 40]
    assert 0 < most <= small + large


def test_a_new_stream_ends_only_the_stream_before_it(stepped: Engine) -> None:
    scheduler, reader = Scheduler(), EventStream()
    scheduler.add(Sequence(PROMPTS[0], Options(20), reader=reader))
    scheduler.admit(stepped.runner)
    scheduler.advance(stepped.runner)
    first = stepped.stream(PROMPTS[1], Options(20))
    next(first)
    assert list(stepped.stream(PROMPTS[2], Options(5)))
    with pytest.raises(InvalidRequestError, match="ended this answer"):
        list(first)
    while scheduler.advance(stepped.runner):
        pass
    assert list(reader)[-1].finish_reason in (Finish.LENGTH, Finish.EOS)


def test_no_time_is_learnt_from_rounds_between_which_others_ran(stepped: Engine) -> None:
    options = Options(60, drafter="none")
    timed = [event.round.seconds for event in stepped.stream(PROMPTS[0], options)]
    assert any(seconds is not None for seconds in timed[1:])
    readers = [EventStream(), EventStream()]
    scheduler = Scheduler()
    for prompt, reader in zip(PROMPTS, readers, strict=False):
        scheduler.add(Sequence(prompt, options, reader=reader))
    while scheduler.waiting or scheduler.running:
        scheduler.admit(stepped.runner)
        scheduler.advance(stepped.runner)
    assert {event.round.seconds for event in readers[0]} == {None}, "the other has more to read"


def test_an_answer_waits_for_memory_and_goes_on(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy = akunu_py.load(str(tiny_model_dir))
    alone = [told(roomy.generate(prompt, Options(20))) for prompt in PROMPTS]
    one = max(slot.nbytes for slot in roomy.slots)
    tight = akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), prompt_cache_bytes=2 * one))
    tight.generate(PROMPTS[0], Options(1))  # now it knows how large a cache is
    grow, most = PrefixPool.grow, 0

    def watched(pool: PrefixPool, slot: PrefixSlot, tokens: int) -> None:
        nonlocal most
        grow(pool, slot, tokens)
        most = max(most, sum(status.nbytes for status in tight.slots))

    monkeypatch.setattr(PrefixPool, "grow", watched)
    completions = tight.generate_batch(PROMPTS, Options(20), parallel=len(PROMPTS))
    assert [told(completion) for completion in completions] == alone
    assert most <= 2 * one
