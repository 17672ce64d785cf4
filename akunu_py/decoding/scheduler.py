"""The scheduler: which requests run together, and which forward comes next.

A forward is a chunk of one prefill, or a round over all sequences that decode; they alternate, so
neither holds the other for more than one. Plain Python: it knows sequences by their numbers, and
neither models nor threads. The batch itself is no concern of its: whoever advances the sequences of
a round one after another gets one forward for all of them, if the target batches.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final

PATIENCE: Final = 8
"""A sequence that others were preferred to this many times in a row comes first once: a chat gets a
round in nine while completions take all places."""

MOST_OVERTAKEN: Final = 3
"""A prompt gets a chunk after so many chunks of shorter ones that came later."""

DEFAULT_PARALLEL: Final = 4
MAX_PARALLEL: Final = 8
"""As many again may be paused for more urgent ones, and each keeps one of `MAX_SLOTS` caches."""


class Kind(StrEnum):
    """What a request is; a chat lets the others go first, because somebody types on meanwhile."""

    FILL_IN = "fill-in"
    COMPLETION = "completion"
    CHAT = "chat"


class Phase(StrEnum):
    """What a sequence needs next."""

    WAITING = "waiting"  # a place
    PREFILLING = "prefilling"  # a chunk of its prompt
    DECODING = "decoding"  # a round
    DONE = "done"  # nothing


Step = Callable[[bool], Phase | None]
"""Advances a sequence by one forward and returns what it needs then; must not raise.

It is told whether it may wait for others: for their memory, or for what they compute of a prompt
that begins like its own. It returns None if it does: then it did nothing. A sequence that is
cancelled ends with its next step and never waits."""


@dataclass(eq=False)
class Sequence:
    """What one request is at any moment.

    Attributes:
        step: its next forward; set before it runs.
        kind: what it asks for.
        priority: as in vLLM, a lower number goes first; usually 0. It comes before the kind.
        cancelled: whether nobody wants the rest.
        phase: what it needs next.
        arrival: its place in the order of arrival.
        place: its number among those that run, the lowest free one.
        left: how many tokens of its prompt are to be computed, as far as is known.
        overtaken: how many chunks of shorter prompts that came later went before its next one.
        passed: how often in a row others were preferred to it.
        stalled: whether it waits for others, until one of them ends or computes more of its prompt.
        missed: how many others ended while it waited for them, and one more; 0 if it does not wait.
        chunks, rounds: how many it had.
    """

    step: Step | None = None
    kind: Kind = Kind.COMPLETION
    priority: int = 0
    cancelled: Callable[[], bool] = lambda: False
    phase: Phase = Phase.WAITING
    arrival: int = 0
    place: int = 0
    left: int = 0
    overtaken: int = 0
    passed: int = 0
    stalled: bool = False
    missed: int = 0
    chunks: int = 0
    rounds: int = 0

    @property
    def rank(self) -> tuple[int, bool]:
        """How urgent it is; lower goes first."""
        return self.priority, self.kind is Kind.CHAT

    @property
    def order(self) -> tuple[bool, bool, tuple[int, bool], int]:
        """Its place among others; lower goes first."""
        return not self.cancelled(), self.passed < PATIENCE, self.rank, self.arrival

    @property
    def order_of_memory(self) -> tuple[bool, tuple[int, bool], int]:
        """The same among those who want memory: what it has waited for counts, its turns do not."""
        return self.missed <= PATIENCE, self.rank, self.arrival


class Scheduler:
    """Admits sequences and advances them.

    At most `parallel` sequences advance. If more urgent ones arrive, the least urgent are paused,
    not dropped: at most `parallel` of them, and none if only one may run.

    Args:
        parallel: how many sequences may advance together, 1 to `MAX_PARALLEL`.

    Attributes:
        running: those that were admitted and are not done; any thread may read it.
        rounds: how many rounds there were, whatever the number of sequences in them.
        advanced: the sum of these numbers.
    """

    def __init__(self, parallel: int = DEFAULT_PARALLEL) -> None:
        self.parallel = parallel
        self.running: tuple[Sequence, ...] = ()
        self.rounds = 0
        self.advanced = 0
        self._chunk_was_last = False

    def candidate(self, waiting: Iterable[Sequence]) -> Sequence | None:
        """Which of the waiting sequences should be admitted now, if any."""
        most = self.parallel if self.parallel == 1 else 2 * self.parallel
        if len(self.running) >= most:
            return None
        able = (one for one in waiting if self._running_before(one) < self.parallel)
        return min(able, key=lambda sequence: sequence.order, default=None)

    def _running_before(self, sequence: Sequence) -> int:
        """How many of those that run would advance before this one."""
        return sum(one.rank <= sequence.rank for one in self.running)

    @staticmethod
    def pass_over(sequence: Sequence, waiting: Iterable[Sequence]) -> None:
        """Counts that a sequence is preferred to those that have waited longer."""
        for other in waiting:
            other.passed += other.arrival < sequence.arrival

    def admit(self, sequence: Sequence) -> None:
        """Lets a sequence run."""
        sequence.passed, sequence.phase = 0, Phase.PREFILLING
        taken = {one.place for one in self.running}
        sequence.place = next(place for place in count() if place not in taken)
        self.running = (*self.running, sequence)

    def advance(self) -> bool:
        """Computes the next forward; False if there is none to compute."""
        chosen, first = self._choose()
        rounds = sum(one.rounds for one in chosen)
        advanced = sum([self._step(one, may_wait=one is not first) for one in chosen])
        if sum(one.rounds for one in chosen) > rounds:
            self.rounds += 1
            self.advanced += advanced
        return bool(chosen)

    def _choose(self) -> tuple[list[Sequence], Sequence | None]:
        """The sequences to advance, and the one that never waits for others."""
        if len(self.running) < 2:  # the usual case, where order means nothing
            return list(self.running), next(iter(self.running), None)
        order = sorted(self.running, key=lambda sequence: sequence.order)
        first = min(order, key=lambda sequence: sequence.order_of_memory)
        able = [one for one in order if not one.stalled or one is first or one.cancelled()]
        active = able[: self.parallel]
        prefilling = [one for one in active if one.phase is Phase.PREFILLING]
        if not prefilling and any(one.stalled for one in order[: self.parallel]):
            # It may wait for the prompt of one that has no place.
            prefilling = [one for one in able if one.phase is Phase.PREFILLING][:1]
        chosen = [one for one in active if one.phase is Phase.DECODING]
        if prefilling and not (chosen and self._chunk_was_last):
            found = _next_to_prefill(prefilling[0], able)
            known = [one for one in prefilling if one.left <= 1]  # the last token needs no prefill
            chosen = known if found in known else [found]
        for one in able:
            one.passed += 1
        for one in chosen:
            one.passed = 0
        return chosen, first

    def _step(self, sequence: Sequence, *, may_wait: bool) -> bool:
        """Advances a sequence; False if it waits for others."""
        assert sequence.step is not None, "it is set before a sequence is admitted"
        before = sequence.phase
        after = sequence.step(may_wait)
        sequence.stalled = after is None
        if after is None:
            sequence.missed = max(sequence.missed, 1)
            return False
        sequence.missed = 0
        self._chunk_was_last = before is Phase.PREFILLING
        sequence.chunks += self._chunk_was_last
        sequence.rounds += not self._chunk_was_last
        sequence.phase = after
        if after is Phase.DONE:
            sequence.step = None
            self.running = tuple(one for one in self.running if one is not sequence)
            for other in self.running:
                other.missed += other.missed > 0
        if self._chunk_was_last or after is Phase.DONE:  # they may find what they wait for
            for other in self.running:
                other.stalled = False
        return True


def _next_to_prefill(first: Sequence, able: list[Sequence]) -> Sequence:
    """Of those as urgent as the first: the one with the least to compute, within limits.

    Equal ones come one after another, so the second finds the prefix that it shares with the first.
    """
    peers = [one for one in able if one.phase is Phase.PREFILLING and one.rank == first.rank]
    found = min(
        peers,
        key=lambda one: (
            not one.cancelled(),
            one.overtaken < MOST_OVERTAKEN,
            one.left,
            one.arrival,
        ),
    )
    for one in peers:
        one.passed = 0
        one.overtaken += one.arrival < found.arrival
    found.overtaken = 0
    return found
