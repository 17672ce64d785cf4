"""A worker that answers several requests together: who waits for whom, in forwards, not in time."""

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import akunu_py
from akunu_py.decoding.target import ModelTarget
from akunu_py.engine import Engine
from akunu_py.errors import InvalidRequestError
from akunu_py.events import Completion, EventStream
from akunu_py.options import MAX_PARALLEL, Grammar, Options, Sampling
from akunu_py.rounds import Finish
from akunu_py.sampling.sampler import Sampler
from akunu_py.sequence import Kind, Sequence
from akunu_py.worker import EngineWorker

STEP = 16
LONG = Random(1).choices(range(32, 127), k=300)
COMPLETION = list(b"def f(")


class Watched:
    """A worker whose forwards are listed, and can be interrupted.

    Attributes:
        forwards: a number for the cache of each forward.
        calls: of each forward, batched or not, the numbers of its caches and how many rows it has.
        at: what to do before a forward, by its number.
    """

    def __init__(self, folder: Path, parallel: int, **settings: Any) -> None:
        self.forwards: list[int] = []
        self.calls: list[tuple[list[int], int]] = []
        self.at: dict[int, Callable[[], object]] = {}
        self.most_slots = 0
        self._folder = folder
        self._settings = settings
        self.worker = EngineWorker(self._load, parallel=parallel)

    def _load(self) -> Engine:
        engine = akunu_py.load(
            akunu_py.ModelOptions(str(self._folder), prefill_step_size=STEP, **self._settings)
        )
        model: Any = engine.model
        forward, forward_batch = model.forward, model.forward_batch
        assert engine.batch.why_impossible is None  # which takes forwards of its own

        def note(*caches: Any) -> None:
            self.most_slots = max(self.most_slots, len(engine.slots))
            for cache in caches:
                self.at.pop(len(self.forwards), lambda: None)()
                self.forwards.append(id(cache))

        def watched(tokens: Any, cache: Any) -> Any:
            note(cache)
            self.calls.append(([id(cache)], tokens.size))
            return forward(tokens, cache)

        def watched_batch(tokens: Any, caches: Any, counts: Any) -> Any:
            note(*caches)
            self.calls.append(([id(cache) for cache in caches], tokens.size))
            return forward_batch(tokens, caches, counts)

        model.forward, model.forward_batch = watched, watched_batch
        return engine


@pytest.fixture
def watch(tiny_model_dir: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(parallel: int, **settings: Any) -> Watched:
        made.append(Watched(tiny_model_dir, parallel, **settings))
        return made[-1]

    yield make
    for watched in made:
        assert watched.worker.close(60)


def read(events: EventStream) -> Completion:
    """The whole answer."""
    completion = Completion("tiny")
    for event in events:
        assert completion.finish_reason is Finish.CANCELLED, "nothing comes after the end"
        completion.add(event)
    return completion


@pytest.mark.parametrize(
    ("prompt", "at"), [([1, 2, 3], 40), (LONG, 5)], ids=["an answer", "a prefill"]
)
def test_a_completion_begins_within_a_chunk_and_a_round_of(
    watch: Callable[..., Watched], prompt: list[int], at: int
) -> None:
    watched, late = watch(4), []
    plain = Options(max_tokens=100, drafter="none", logit_bias=((2, -100.0),))
    watched.at[at] = lambda: late.append(watched.worker.stream(COMPLETION, Options(max_tokens=1)))
    read(watched.worker.stream(Sequence(prompt, plain, Kind.CHAT)))
    assert read(late[0]).finish_reason is not Finish.CANCELLED
    chat = watched.forwards[at]
    own = [number for number, cache in enumerate(watched.forwards) if cache != chat]
    assert len(own) == 2, "a chunk and a round"
    # Its forward before the arrival, the pipelined one, and one between the chunk and the round.
    assert own[0] - at <= 2
    assert own[1] - at <= 4
    assert len(watched.forwards) - own[1] > 10, "the other goes on"


@pytest.mark.parametrize("at", [41, 42, 43, 44])
def test_a_completion_waits_for_one_forward_of_many_prompts_and_chats(
    watch: Callable[..., Watched], at: int
) -> None:
    """Two chats are read and two answered: the forward in which it comes ends, and perhaps a round
    of the chats is computed, but no other part of a prompt."""
    watched, arrived = watch(4), list[int]()
    plain = Options(max_tokens=60, drafter="none", logit_bias=((2, -100.0),))
    late: list[EventStream] = []

    def arrive() -> None:
        arrived.append(len(watched.calls))
        late.append(watched.worker.stream(COMPLETION, Options(max_tokens=1)))

    prompts = ([1, 2, 3], [4, 5, 6], LONG[1:], LONG[2:])
    streams = [watched.worker.stream(Sequence(prompt, plain, Kind.CHAT)) for prompt in prompts]
    watched.at[at] = arrive
    for events in [*streams, *late]:
        read(events)
    read(late[0])
    after = watched.calls[arrived[0] + 1 :]
    own = next(number for number, (_, rows) in enumerate(after) if rows == len(COMPLETION) - 1)
    (cache,) = after[own][0]
    first_token = next(at for at in range(own + 1, len(after)) if cache in after[at][0])
    assert STEP not in [rows for _, rows in after[:first_token]], "no other part of a prompt"
    assert STEP in [rows for _, rows in after[first_token:]], "the chats were still being read"
    assert first_token <= 3


def test_prompts_that_arrive_together_compute_what_they_share_once(
    watch: Callable[..., Watched],
) -> None:
    """Also if the later is shorter; it begins as soon as what it shares is computed."""
    watched, streams = watch(4), list[EventStream]()
    other = [*LONG[:100], *b"something else"]
    watched.at[1] = lambda: streams.extend(
        watched.worker.stream(one, Options(5)) for one in (other, LONG)
    )
    assert len(read(watched.worker.stream(LONG, Options(5))).token_ids) == 5
    assert [read(events).stats.cached_tokens for events in streams] == [100, 299]
    long_one, needed = watched.forwards[0], -(-100 // STEP)
    chunks = [cache for (cache, *_), rows in watched.calls if rows > 4]
    assert chunks[: needed + 1] == [long_one] * needed + [chunks[needed]]
    assert chunks[needed] != long_one


def test_a_prompt_that_waited_for_one_that_is_cancelled_goes_on_from_there(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(2)
    first = watched.worker.stream(LONG, Options(5))
    watched.at[3] = first.cancel
    completion = read(watched.worker.stream(LONG, Options(5)))
    assert read(first).finish_reason is Finish.CANCELLED
    assert completion.stats.cached_tokens in (3 * STEP, 4 * STEP)
    assert len(completion.token_ids) == 5


def test_calls_are_made_between_forwards_and_wait_for_no_answer(
    watch: Callable[..., Watched],
) -> None:
    watched = watch(2)
    events = watched.worker.stream(LONG, Options(max_tokens=200))
    assert watched.worker.call(lambda engine: engine.model.name) == "tiny"
    generated = watched.worker.call(lambda engine: engine.generate(COMPLETION, Options(5)))
    assert generated.token_ids
    assert not events.finished
    events.cancel()
    assert read(events).finish_reason is Finish.CANCELLED


def test_a_worker_has_a_number_of_places() -> None:
    for parallel in (0, MAX_PARALLEL + 1):
        with pytest.raises(InvalidRequestError, match=f"from 1 to {MAX_PARALLEL}, not {parallel}"):
            EngineWorker(lambda: pytest.fail("loads nothing"), parallel=parallel)


@pytest.mark.parametrize("kind", Kind)
def test_closing_cancels_all_that_run(watch: Callable[..., Watched], kind: Kind) -> None:
    watched = watch(2)
    running = [
        watched.worker.stream(Sequence(LONG[at:], Options(max_tokens=None), kind))
        for at in range(5)
    ]
    next(running[0])
    assert watched.worker.close(60)
    assert [read(events).finish_reason for events in running] == [Finish.CANCELLED] * 5


def test_a_request_that_fails_leaves_the_others_alone(watch: Callable[..., Watched]) -> None:
    class Failing(Sampler):
        def process_logits(self, *_: object) -> Any:
            raise ZeroDivisionError

    watched = watch(3)
    good = watched.worker.stream(LONG, Options(max_tokens=10))
    failing = Sequence(LONG[5:], Options(max_tokens=10), sampler=Failing(Sampling()))
    bad = watched.worker.stream(failing)
    wrong = watched.worker.stream("", Options(max_tokens=10))
    with pytest.raises(ZeroDivisionError):
        read(bad)
    with pytest.raises(InvalidRequestError):
        read(wrong)
    assert len(read(good).token_ids) == 10


def test_nothing_of_a_batch_waits_for_the_garbage_collector(watch: Callable[..., Watched]) -> None:
    """A target has its sequence's cache, even if the pool has dropped that."""

    def targets() -> int:
        return sum(isinstance(thing, ModelTarget) for thing in gc.get_objects())

    def fail() -> None:
        raise ZeroDivisionError

    watched = watch(4)
    read(watched.worker.stream(COMPLETION, Options(1)))
    gc.collect()
    gc.disable()
    try:
        before = targets()
        streams = [watched.worker.stream(LONG[at:], Options(20)) for at in range(4)]
        assert all(read(events).token_ids for events in streams)
        read(watched.worker.stream(COMPLETION, Options(1)))
        assert targets() <= before
        streams = [watched.worker.stream(LONG[at:], Options(20)) for at in range(3)]
        next(streams[2])  # from now on there are rounds only
        watched.at[len(watched.forwards) + 6] = fail
        for events in streams:
            with suppress(ZeroDivisionError):
                read(events)
        read(watched.worker.stream(COMPLETION, Options(1)))
        assert targets() <= before
    finally:
        gc.enable()


MIXED: list[tuple[list[int], Options, Kind]] = [
    (LONG, Options(40), Kind.CHAT),
    (LONG[:150], Options(30, temperature=1.0, seed=1), Kind.CHAT),
    (LONG[:150], Options(30, temperature=1.0, seed=2), Kind.CHAT),
    (LONG[:150], Options(30, temperature=1.0, seed=3), Kind.CHAT),
    (COMPLETION, Options(20, logprobs=2), Kind.COMPLETION),
    (COMPLETION * 9, Options(12, grammar=Grammar("regex", "[a-z]{4,9}")), Kind.CHAT),
    (LONG[50:], Options(25, repetition_penalty=1.3), Kind.FILL_IN),
    (LONG[:80], Options(15, priority=-1, num_draft_tokens=3), Kind.CHAT),
]


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path) -> list[tuple[object, ...]]:
    """What each answer is by itself."""
    engine = akunu_py.load(akunu_py.ModelOptions(str(tiny_model_dir), prefill_step_size=STEP))
    answers = []
    for prompt, options, _ in MIXED:
        engine.reset()
        answers.append(told(engine.generate(prompt, options)))
    return answers


def told(completion: Completion) -> tuple[object, ...]:
    logprobs = [(one.token, round(one.logprob, 3)) for one in completion.logprobs]
    return completion.token_ids, completion.text, completion.finish_reason, logprobs


@pytest.mark.parametrize("parallel", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_mixed_requests_are_answered_as_alone_whoever_leaves(
    watch: Callable[..., Watched], alone: list[tuple[object, ...]], parallel: int, seed: int
) -> None:
    draw, watched = Random(seed), watch(parallel)
    asked = [draw.randrange(len(MIXED)) for _ in range(4)] + list(range(len(MIXED)))
    draw.shuffle(asked)
    streams = [watched.worker.stream(Sequence(*MIXED[at])) for at in asked]
    leaving = set(draw.sample(range(len(asked)), 4))
    for number in leaving:
        watched.at[draw.randrange(100)] = streams[number].cancel
    answers = [read(events) for events in streams]
    for number, (at, completion) in enumerate(zip(asked, answers, strict=True)):
        if number not in leaving:
            assert told(completion) == alone[at]
        elif completion.finish_reason is Finish.CANCELLED:
            whole: Any = alone[at][0]
            assert completion.token_ids == whole[: len(completion.token_ids)]
    engine = watched.worker.loading.result()
    assert not any(slot.busy for slot in engine.slots)
    assert watched.worker.call(lambda _: watched.worker.queue_depth) == 0
    assert not watched.worker.scheduler.running


def test_little_memory_makes_requests_wait_and_loses_none(
    watch: Callable[..., Watched], alone: list[tuple[object, ...]]
) -> None:
    watched = watch(4, prompt_cache_bytes=1 << 20)
    streams = [watched.worker.stream(Sequence(*one)) for one in MIXED]
    assert [told(read(events)) for events in streams] == alone
    assert watched.most_slots <= 4
