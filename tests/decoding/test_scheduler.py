"""Which forward comes next: everything gets its turn, the urgent first, nothing is lost."""

from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from akunu_py.options import MAX_PARALLEL, Options
from akunu_py.scheduler import MOST_OVERTAKEN, PATIENCE, Scheduler
from akunu_py.sequence import Kind, Phase, Sequence

CHUNK = 100  # tokens
CHAT, FILL_IN, COMPLETION = Kind.CHAT, Kind.FILL_IN, Kind.COMPLETION


@dataclass
class FakeEngine:
    """Computes nothing, but counts forwards and memory as an engine would.

    Attributes:
        memory: units that all sequences may hold together, one for each of their forwards.
        forwards: names of the sequences in each forward, a chunk being a list of one.
        ended: the names of those that are done, in order.
    """

    scheduler: Scheduler
    memory: int = 1 << 30
    forwards: list[list[str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    held: dict[Sequence, int] = field(default_factory=dict)
    names: dict[Sequence, str] = field(default_factory=dict)
    phases: dict[Sequence, Iterator[Phase]] = field(default_factory=dict)
    follows: dict[Sequence, Sequence] = field(default_factory=dict)

    def put(
        self,
        name: str,
        chunks: int = 1,
        rounds: int = 1,
        kind: Kind = COMPLETION,
        *,
        priority: int = 0,
        max_tokens: int = 128,
    ) -> Sequence:
        """Lets a request arrive."""
        sequence = Sequence(
            [0] * CHUNK * chunks, Options(priority=priority, max_tokens=max_tokens), kind
        )
        phases = [*[Phase.PREFILLING] * (chunks - 1), *[Phase.DECODING] * rounds, Phase.DONE]
        self.names[sequence], self.phases[sequence] = name, iter(phases)
        self.scheduler.add(sequence)
        return sequence

    @property
    def waiting(self) -> list[Sequence]:
        return self.scheduler.waiting

    def cancel(self, name: str) -> None:
        for sequence, own in self.names.items():
            sequence.cancelled |= own == name

    def encode(self, sequence: Sequence) -> None:
        assert isinstance(sequence.asked, list)
        sequence.prompt, sequence.phase = sequence.asked, Phase.WAITING

    def is_being_computed(self, sequence: Sequence, running: tuple[Sequence, ...]) -> bool:
        before = self.follows.get(sequence)
        return before in running and before is not None and before.phase is Phase.PREFILLING

    def has_room(self, sequence: Sequence) -> bool:
        return sum(self.held.values()) + len(sequence.prompt) // CHUNK < self.memory

    def start(self, sequence: Sequence) -> None:
        assert sequence in self.scheduler.running, "whoever looks for it finds it"
        sequence.phase = Phase.PREFILLING
        self.held[sequence] = 0

    def reserve(self, sequence: Sequence, *, anyway: bool) -> bool:
        return anyway or sum(self.held.values()) < self.memory

    def advance(self, sequences: abc.Sequence[Sequence]) -> None:
        for sequence in sequences:
            assert sequence.phase is not Phase.DONE
            if not sequence.cancelled:
                self.held[sequence] += 1
                self.forwards[-1].append(self.names[sequence])
                sequence.computed_tokens += CHUNK * (sequence.phase is Phase.PREFILLING)
            sequence.phase = Phase.DONE if sequence.cancelled else next(self.phases[sequence])
            if sequence.phase is Phase.DONE:
                self.held.pop(sequence)
                self.ended.append(self.names[sequence])

    def step(self) -> list[str]:
        """Admits what may run, and computes the next forward; returns who was in it."""
        self.scheduler.admit(self)
        self.forwards.append([])
        assert self.scheduler.advance(self) or not self.waiting
        return self.forwards[-1]

    def finish(self, most: int = 100_000) -> None:
        """Runs until everything is done."""
        for _ in range(most):
            if not (self.scheduler.running or self.scheduler.waiting):
                return
            self.step()
        pytest.fail("something starves")


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(Scheduler(4))


def test_rounds_and_chunks_alternate(engine: FakeEngine) -> None:
    engine.put("a", rounds=9)
    engine.put("b", rounds=9)
    assert [engine.step() for _ in range(3)] == [["a"], ["a"], ["b"]]
    engine.put("long", chunks=9)
    assert [engine.step() for _ in range(4)] == [["a", "b"], ["long"], ["a", "b"], ["long"]]


def test_a_prefill_alone_waits_for_nobody(engine: FakeEngine) -> None:
    engine.put("a", chunks=3)
    assert [engine.step() for _ in range(4)] == [["a"]] * 4


def test_a_completion_goes_before_a_chat_that_came_first(engine: FakeEngine) -> None:
    engine.put("chat", chunks=50, rounds=9, kind=CHAT)
    engine.step()
    engine.put("typed", chunks=2, rounds=1, kind=FILL_IN)
    assert [engine.step() for _ in range(4)] == [["typed"], ["typed"], ["typed"], ["chat"]]


def test_priorities_go_before_kinds(engine: FakeEngine) -> None:
    for name, kind, priority in (("a", FILL_IN, 0), ("b", CHAT, -1), ("c", CHAT, 5)):
        engine.put(name, kind=kind, priority=priority)
    engine.finish()
    assert engine.ended == ["b", "a", "c"]


def test_equal_requests_prefill_one_after_another(engine: FakeEngine) -> None:
    """So the second finds the prefix that it shares with the first."""
    engine.put("a", chunks=4)
    engine.put("b", chunks=4)
    names = [name for _ in range(10) for name in engine.step()]
    assert names.index("b") > 3


def test_prompts_that_are_known_take_no_turns_from_each_other(engine: FakeEngine) -> None:
    for name in "abc":
        engine.put(name, chunks=1, rounds=2).asked = [0]
    engine.finish()
    assert engine.forwards == [["a", "b", "c"]] * 3


def test_short_prompts_go_before_long_ones_that_are_as_urgent(engine: FakeEngine) -> None:
    engine.put("long", chunks=50)
    engine.step()
    for name in "ab":
        engine.put(name, rounds=2)
    assert [engine.step() for _ in range(4)] == [["a"], ["a"], ["b"], ["a", "b"]]


def test_short_prompts_do_not_starve_a_long_one(engine: FakeEngine) -> None:
    long = engine.put("long", chunks=50)
    for number in range(60 * (MOST_OVERTAKEN + 1)):
        engine.put(str(number), rounds=0)
        engine.step()
        chunks = [names == ["long"] for names in engine.forwards[-MOST_OVERTAKEN - 1 :]]
        assert sum(chunks) <= 1 or long.tokens_left < 2, "it delays each of them by one chunk"
    assert "long" in engine.ended


@pytest.mark.parametrize("kind", [COMPLETION, CHAT])
def test_prompts_that_are_known_do_not_starve_one_that_is_not(
    engine: FakeEngine, kind: Kind
) -> None:
    long = engine.put("long", chunks=20)
    for number in range(20 * (MOST_OVERTAKEN + 1) * 4):
        if len(engine.scheduler.running) + len(engine.waiting) < 5:
            engine.put(f"known {number}", kind=kind).asked = [0]
        engine.step()
    assert long.chunks == 20
    assert "known 0" in engine.ended[:4]


def test_prompts_are_read_in_order_however_long_they_wait(engine: FakeEngine) -> None:
    for name in "abc":
        engine.put(name, chunks=3 * PATIENCE, rounds=1, kind=CHAT)
    for number in range(30):
        engine.put(f"typed {number}", rounds=PATIENCE, kind=FILL_IN)
    engine.finish()
    chunks = [names[0] for names in engine.forwards if names and names[0] in "abc"]
    assert chunks == sorted(chunks)


def test_a_chat_that_waits_for_a_place_keeps_no_completion_waiting(engine: FakeEngine) -> None:
    for name in "abcde":
        engine.put(name, rounds=10**6, kind=CHAT)
    for number in range(5 * PATIENCE):
        engine.put(f"typed {number}", rounds=2, kind=FILL_IN)
        for _ in range(5):
            engine.step()
        assert f"typed {number}" in engine.ended


@given(
    chats=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 40)), min_size=1, max_size=8),
    before=st.integers(0, 60),
    parallel=st.integers(2, 4),
    chunks=st.integers(1, 3),
)
def test_a_completion_waits_for_no_chunk_of_a_chat_after_its_arrival(
    chats: list[tuple[int, int]], before: int, parallel: int, chunks: int
) -> None:
    engine = FakeEngine(Scheduler(parallel))
    sequences = {
        str(number): engine.put(str(number), many, rounds, CHAT)
        for number, (many, rounds) in enumerate(chats)
    }
    for _ in range(before):
        engine.step()
    engine.put("typed", chunks, 1, FILL_IN)
    others = 0
    while "typed" not in engine.ended:
        counted = {name: one.chunks for name, one in sequences.items()}
        forward = engine.step()
        others += any(one.chunks > counted[name] for name, one in sequences.items())
        assert len(engine.forwards) - before <= 2 * chunks + 1, forward
    assert others == 0


def test_a_prompt_that_another_computes_is_admitted_after_it(engine: FakeEngine) -> None:
    first, later = engine.put("first", chunks=9), engine.put("later", chunks=3)
    engine.follows[later] = first
    engine.put("other", chunks=1)
    engine.finish()
    names = [name for forward in engine.forwards for name in forward]
    assert names.index("other") < names.index("later") == 12
    assert sorted(engine.ended) == ["first", "later", "other"]


def test_who_is_taken_back_lets_those_behind_in(engine: FakeEngine) -> None:
    engine.memory = 12
    engine.put("running", rounds=50)
    engine.step()
    large, small = engine.put("large", chunks=20), engine.put("small")
    engine.step()
    assert engine.waiting == [large, small]
    assert engine.scheduler.withdraw(large)
    engine.step()
    assert engine.waiting == []


def test_a_short_request_does_not_wait_for_a_queue_of_long_ones(engine: FakeEngine) -> None:
    for number in range(200):
        engine.put(str(number), rounds=400, max_tokens=400)
    for _ in range(9):
        engine.step()
    engine.put("short", rounds=2, max_tokens=16)
    assert "short" in [*engine.step(), *engine.step()]
    engine.step()
    assert engine.ended == ["short"]


def test_a_completion_pauses_a_chat_when_all_places_are_taken(engine: FakeEngine) -> None:
    for name in "abcd":
        engine.put(name, rounds=99, kind=CHAT)
    for _ in range(9):
        engine.step()
    engine.put("typed", rounds=3, kind=COMPLETION)
    assert engine.step() == ["typed"]
    assert engine.step() == ["typed", "a", "b", "c"]
    engine.finish()
    assert engine.ended == ["typed", "a", "b", "c", "d"]


def test_chats_do_not_pause_each_other_and_one_alone_is_never_paused() -> None:
    for parallel, kind in ((2, CHAT), (1, FILL_IN)):
        engine = FakeEngine(Scheduler(parallel))
        for name in ("a", "b"):
            engine.put(name, rounds=9, kind=CHAT)
        engine.step()
        engine.put("late", kind=kind)
        engine.step()
        assert len(engine.scheduler.running) == parallel
        engine.finish()


def test_a_stream_of_completions_does_not_starve_a_chat() -> None:
    engine = FakeEngine(Scheduler(2))
    chats = [engine.put(f"chat {number}", rounds=3, kind=CHAT) for number in range(5)]
    for number in range(1000):
        engine.put(f"typed {number}", kind=FILL_IN)
        engine.step()
        if all(chat.phase is Phase.DONE for chat in chats):
            break
    else:
        pytest.fail("the chats starve")


def test_a_paused_sequence_has_a_round_now_and_then() -> None:
    engine = FakeEngine(Scheduler(2))
    engine.put("chat", rounds=10**6, kind=CHAT)
    engine.put("other", rounds=10**6, kind=CHAT)
    for _ in range(2):
        engine.step()
    for name in ("x", "y"):
        engine.put(name, rounds=10**6, kind=FILL_IN)
    forwards = [engine.step() for _ in range(6 * PATIENCE)]
    assert sum("chat" in names for names in forwards) >= 4
    assert sum("other" in names for names in forwards) >= 4


def test_memory_is_waited_for_until_another_ends() -> None:
    engine = FakeEngine(Scheduler(4), memory=10)
    first, second = engine.put("a", rounds=20), engine.put("b", rounds=20)
    engine.finish()
    assert engine.ended == ["a", "b"]
    assert (first.rounds, second.rounds) == (20, 20)
    names = [name for forward in engine.forwards for name in forward]
    assert names[:12] != ["a", "b"] * 6, "it waited"


def test_completions_that_take_all_memory_do_not_starve_a_chat() -> None:
    engine = FakeEngine(Scheduler(2), memory=6)
    engine.put("chat", chunks=2, rounds=5, kind=CHAT)
    for number in range(20 * PATIENCE):
        engine.put(str(number), rounds=6)
        for _ in range(4):
            engine.step()
    assert "chat" in engine.ended
    assert len(engine.waiting) > 9, "there were always others"


def test_a_cancelled_sequence_ends_with_the_next_forward(engine: FakeEngine) -> None:
    engine.memory = 3
    for name in "abcd":
        engine.put(name, chunks=9, rounds=9, kind=CHAT)
    for _ in range(5):
        engine.step()
    engine.cancel("d")
    for _ in range(2):
        engine.step()
    assert engine.ended == ["d"]


@given(
    kind=st.sampled_from(Kind),
    chunks=st.integers(1, 3),
    parallel=st.integers(1, MAX_PARALLEL),
    rivals=st.sampled_from([(1, 1), (40, 1), (1, 40), (30, 30)]),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=50)
def test_no_priority_keeps_a_request_waiting_forever(
    kind: Kind, chunks: int, parallel: int, rivals: tuple[int, int], seed: int
) -> None:
    """More urgent ones come whenever any ends, so that there are always some for every place."""
    draw = Random(seed)
    engine = FakeEngine(Scheduler(parallel), memory=draw.choice([12, 1 << 30]))
    ranks = draw.choice([1, 3, 9])

    def crowd() -> None:
        while len(engine.scheduler.running) + len(engine.waiting) < 4 * parallel:
            engine.put("rival", *rivals, priority=-draw.choice([1, 10**9]) - draw.randrange(ranks))

    crowd()
    plain = engine.put("plain", chunks, 2, kind)
    # Each forward of its own comes after at most this many, and its place after as many answers.
    turn = 4 * (PATIENCE + 2 * parallel)
    for _ in range((sum(rivals) + chunks) * turn):
        crowd()
        engine.step()
        if plain.phase is Phase.DONE:
            return
    pytest.fail(f"it starves, {plain.phase}")


requests = st.lists(
    st.tuples(
        st.integers(0, 30),  # when it arrives
        st.integers(1, 6),
        st.integers(1, 12),
        st.sampled_from(Kind),
        st.integers(-1, 1),
    ),
    min_size=1,
    max_size=24,
)


@given(
    asked=requests,
    parallel=st.integers(1, MAX_PARALLEL),
    memory=st.sampled_from([1, 12, 40, 1 << 30]),
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=300)
def test_any_schedule(
    asked: list[tuple[int, int, int, Kind, int]], parallel: int, memory: int, seed: int
) -> None:
    draw, engine = Random(seed), FakeEngine(Scheduler(parallel), memory)
    names = [str(number) for number in range(len(asked))]
    sequences = {}
    for now in range(100_000):
        for name, (when, chunks, rounds, kind, priority) in zip(names, asked, strict=True):
            if when == now:
                sequences[name] = engine.put(name, chunks, rounds, kind, priority=priority)
        if draw.random() < 0.05:
            engine.cancel(draw.choice(names))
        if now > max(entry[0] for entry in asked) and not (
            engine.scheduler.running or engine.waiting
        ):
            break
        before = {name: one.phase for name, one in sequences.items()}
        forward = engine.step()
        phases = {before[name] for name in forward} - {Phase.WAITING}
        assert len(forward) == len(set(forward)) <= parallel
        assert len(phases) <= 1, "a forward is a chunk or a round"
        assert phases <= {Phase.DECODING} or len(forward) == 1
        assert len(engine.scheduler.running) <= (1 if parallel == 1 else 2 * parallel)
    assert sorted(engine.ended) == sorted(names), "each ends, and once"
    for name, (_, chunks, rounds, _, _) in zip(names, asked, strict=True):
        one = sequences[name]
        if not one.cancelled:
            assert (one.chunks, one.rounds) == (chunks, rounds)
            assert sum(name in names for names in engine.forwards) == chunks + rounds


@given(asked=requests, parallel=st.integers(2, MAX_PARALLEL))
@settings(max_examples=100)
def test_no_prefill_holds_a_round_for_more_than_one_chunk(
    asked: list[tuple[int, int, int, Kind, int]], parallel: int
) -> None:
    engine = FakeEngine(Scheduler(parallel))
    for number, (_, chunks, rounds, _, _) in enumerate(asked):
        engine.put(str(number), chunks, rounds)
    was_chunk = False
    while engine.scheduler.running or engine.waiting:
        decoding = {one for one in engine.scheduler.running if one.phase is Phase.DECODING}
        counted = {one: one.chunks for one in engine.scheduler.running}
        engine.step()
        is_chunk = any(one.chunks > before for one, before in counted.items())
        assert not (was_chunk and is_chunk and decoding)
        was_chunk = is_chunk
