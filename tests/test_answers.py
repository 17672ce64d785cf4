"""Several answers of one engine under way: each is as it is alone, and they share prefixes."""

from pathlib import Path
from random import Random

import pytest

import akunu_py
from akunu_py.answer import Answer
from akunu_py.cache.prefix_pool import PrefixPool, PrefixSlot
from akunu_py.decoding.scheduler import Phase
from akunu_py.engine import Engine
from akunu_py.errors import ContextOverflowError
from akunu_py.options import Grammar, Options, Sampling
from akunu_py.request import Completion
from akunu_py.round import Finish

PROMPTS = [
    Random(seed).choices(range(32, 127), k=length)
    for seed, length in enumerate((40, 150, 3, 90, 200))
]
MIXED = (
    Options(30),
    Options(25, sampling=Sampling(temperature=1.0, seed=3, top_p=0.9)),
    Options(20, logprobs=2),
    Options(25, sampling=Sampling(repetition_penalty=1.3, frequency_penalty=0.5)),
    Options(12, grammar=Grammar("regex", "[a-z]{4,9}")),
    Options(15, drafter="none"),
    Options(10, logprobs=1, scores_prompt=True),
    Options(15, num_draft_tokens=3),
)


@pytest.fixture
def stepped(tiny_model_dir: Path) -> Engine:
    """An engine with short chunks."""
    return akunu_py.load(str(tiny_model_dir), prefill_step_size=16)


def finish(engine: Engine, answers: list[Answer]) -> list[Completion]:
    """Advances some answers in turn, to their ends."""
    completions = [Completion(engine.model.name) for _ in answers]
    while any(answer.phase is not Phase.DONE for answer in answers):
        for answer, completion in zip(answers, completions, strict=True):
            if answer.phase is not Phase.DONE and (event := answer.advance()) is not None:
                completion.add(event)
    return completions


def told(completion: Completion) -> tuple[object, ...]:
    """What a client gets of an answer, log-probabilities rounded."""
    logprobs = [(one.token, round(one.logprob, 3)) for one in completion.logprobs]
    return completion.token_ids, completion.text, completion.finish_reason, logprobs


def test_answers_in_turn_are_as_they_are_alone(stepped: Engine) -> None:
    asked = [(PROMPTS[at % len(PROMPTS)], options) for at, options in enumerate(MIXED)]
    alone = []
    for prompt, options in asked:
        stepped.reset()
        alone.append(told(stepped.generate(prompt, options)))
    stepped.reset()
    together = finish(stepped, [stepped.begin(prompt, options) for prompt, options in asked])
    assert [told(completion) for completion in together] == alone
    assert not any(slot.busy for slot in stepped.slots)


def test_a_batch_is_what_generate_returns_for_each(stepped: Engine) -> None:
    alone = []
    for prompt in PROMPTS:
        stepped.reset()
        alone.append(told(stepped.generate(prompt, Options(20))))
    for parallel in (1, 3):
        stepped.reset()
        batch = stepped.generate_batch(PROMPTS, Options(20), parallel=parallel)
        assert [told(completion) for completion in batch] == alone


def test_a_batch_ends_with_its_first_error(stepped: Engine) -> None:
    with pytest.raises(ContextOverflowError):
        stepped.generate_batch([PROMPTS[0], [1] * 100_000], Options(20))
    assert not any(slot.busy for slot in stepped.slots)
    assert stepped.generate(PROMPTS[0], Options(5)).token_ids


def test_equal_prompts_are_computed_once(stepped: Engine) -> None:
    options = Options(8, sampling=Sampling(temperature=1.0))
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
    engine = akunu_py.load(str(tiny_model_dir), prompt_cache_bytes=int(small + large))
    grow, most = PrefixPool.grow, 0

    def watched(pool: PrefixPool, slot: PrefixSlot, tokens: int) -> None:
        nonlocal most
        grow(pool, slot, tokens)
        most = max(most, sum(one.cache.nbytes for one in pool._slots.values() if one.busy))

    monkeypatch.setattr(PrefixPool, "grow", watched)
    plain = Options(40, drafter="none", sampling=Sampling(logit_bias=((2, -100.0),)))
    prompts = [Random(at).choices(range(32, 127), k=490 + at * lead) for at in range(2)]
    batch = engine.generate_batch(prompts, plain, parallel=2)
    assert [len(one.token_ids) for one in batch] == [40, 40]
    assert 0 < most <= small + large


def test_a_new_stream_ends_only_the_stream_before_it(stepped: Engine) -> None:
    answer = stepped.begin(PROMPTS[0], Options(20))
    answer.advance()
    first = stepped.stream(PROMPTS[1], Options(20))
    next(first)
    assert list(stepped.stream(PROMPTS[2], Options(5)))
    assert list(first) == []
    (completion,) = finish(stepped, [answer])
    assert completion.finish_reason in (Finish.LENGTH, Finish.EOS)


def test_no_time_is_learnt_from_rounds_between_which_others_ran(stepped: Engine) -> None:
    options = Options(12, drafter="none")
    timed = [event.round.seconds for event in stepped.stream(PROMPTS[0], options)]
    assert any(seconds is not None for seconds in timed[1:])
    one, other = (stepped.begin(prompt, options) for prompt in PROMPTS[:2])
    seconds = []
    for _ in range(8):
        for answer in (one, other):
            if (event := answer.advance()) is not None:
                seconds.append(event.round.seconds)
    assert seconds
    assert set(seconds) == {None}
    one.close()
    other.close()


def test_an_answer_waits_for_memory_and_goes_on(tiny_model_dir: Path) -> None:
    roomy = akunu_py.load(str(tiny_model_dir))
    alone = [told(roomy.generate(prompt, Options(20))) for prompt in PROMPTS]
    one = max(slot.nbytes for slot in roomy.slots)
    tight = akunu_py.load(str(tiny_model_dir), prompt_cache_bytes=2 * one)
    tight.generate(PROMPTS[0], Options(1))  # now it knows how large a cache is
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, sum(slot.nbytes for slot in tight.slots))
        return False

    answers = [tight.begin(prompt, Options(20), cancelled=look) for prompt in PROMPTS]
    completions = [Completion("tiny") for _ in PROMPTS]
    while any(answer.phase is not Phase.DONE for answer in answers):
        left = [answer for answer in answers if answer.phase is not Phase.DONE]
        for answer in left:
            event = answer.advance(may_wait=answer is not left[0])
            if event is not None:
                completions[answers.index(answer)].add(event)
    assert [told(completion) for completion in completions] == alone
    assert most <= 2 * one
