"""The scheduler: which requests run, and which forward pass comes next.

A forward pass is a chunk of one prefill, or a round over all sequences that decode. They alternate,
so neither delays the other by more than one pass. Plain Python: it knows no models and starts no
threads.
"""

from collections import abc
from itertools import count
from typing import Final, Protocol

from akunu_py.machine.threads import Rank
from akunu_py.options import DEFAULT_PARALLEL
from akunu_py.sequence import Phase, Sequence

PATIENCE: Final = 8
"""A sequence that was passed over this many times in a row comes first once: a chat gets every
ninth round while completions take all places."""

MOST_OVERTAKEN: Final = 3
"""A prompt gets a chunk after this many chunks of shorter prompts that came later."""


_LEAST_URGENT: Final[Rank] = (0, True, 0)


class SequenceRunner(Protocol):
    """Computes the forward passes of sequences. No method raises: a sequence that fails is done."""

    def encode(self, sequence: Sequence) -> None:
        """Encodes the prompt of a new sequence."""

    def is_being_computed(self, sequence: Sequence, running: tuple[Sequence, ...]) -> bool:
        """Whether a running sequence is computing a prompt that begins like this one."""

    def has_room(self, sequence: Sequence) -> bool:
        """Whether there is memory for its prompt and a usual answer besides the running ones."""

    def start(self, sequence: Sequence) -> None:
        """Gives an encoded sequence everything that it needs to run."""

    def reserve(self, sequence: Sequence, *, anyway: bool) -> bool:
        """Takes memory for its next forward pass; False if there is none.

        With `anyway`, it may exceed the limit. If even that fails, the sequence is done.
        """

    def advance(self, sequences: abc.Sequence[Sequence]) -> None:
        """Computes the next forward pass of each, perhaps one for several, and sets their next
        phases."""


class Scheduler:
    """Admits sequences and advances them, at most `parallel` together.

    If more urgent ones arrive, the least urgent are paused, not dropped: at most `parallel` of
    them, and none if only one may run. A sequence is admitted when there is memory for it, and no
    other one is computing the beginning of its prompt. Other threads may `add` and `withdraw`
    `waiting` ones and read `running`. `advanced` sums the sequences over all rounds.
    """

    def __init__(self, parallel: int = DEFAULT_PARALLEL) -> None:
        self.parallel = parallel
        self.waiting: list[Sequence] = []
        self.running: tuple[Sequence, ...] = ()
        self.rounds = 0
        self.advanced = 0
        self._arrivals = count(1)
        self._chunk_was_last = False
        # Events that may let a waiting sequence in are marked by a new object, without a lock.
        self._news = self._seen = object()

    def next_arrival(self) -> int:
        """The next place in the order of arrival."""
        return next(self._arrivals)

    def rank(self) -> Rank:
        """How urgent the most urgent sequence is; any thread may call this."""
        known = (*self.running, *self.waiting)
        return min((sequence.rank for sequence in known), default=_LEAST_URGENT)

    def add(self, sequence: Sequence) -> None:
        """Adds a sequence to those that wait."""
        sequence.arrival = self.next_arrival()
        self.waiting.append(sequence)
        self._news = object()

    def withdraw(self, sequence: Sequence) -> bool:
        """Removes a waiting sequence; returns False if it is not waiting any more."""
        try:
            self.waiting.remove(sequence)
        except ValueError:
            return False
        self._news = object()  # sequences behind it may fit
        return True

    def admit(self, runner: SequenceRunner) -> None:
        """Admits as many waiting sequences as may run."""
        while (sequence := self._next(runner)) is not None:
            if not self.withdraw(sequence):
                continue
            for other in list(self.waiting):
                other.passed += other.arrival < sequence.arrival
            taken = {one.place for one in self.running}
            sequence.place = next(place for place in count() if place not in taken)
            sequence.passed = 0
            self.running = (*self.running, sequence)
            runner.start(sequence)
            self._remove_if_done(sequence)

    def advance(self, runner: SequenceRunner) -> bool:
        """Computes the next forward pass; returns False if there is nothing to compute."""
        chosen = self._choose(runner)
        rounds = 0
        if len(self.running) > 1:
            for sequence in self.running:
                sequence.in_company = True
        for sequence in chosen:
            was_prefilling = sequence.phase is Phase.PREFILLING
            sequence.chunks += was_prefilling
            sequence.rounds += not was_prefilling
            rounds += not was_prefilling
            self._chunk_was_last = was_prefilling
            if was_prefilling:
                self._news = object()
        runner.advance(chosen)
        for sequence in chosen:
            self._remove_if_done(sequence)
        self.rounds += rounds > 0
        self.advanced += rounds
        return bool(chosen)

    def clear(self) -> None:
        """Drops all running sequences, after an unexpected error."""
        self.running, self._news = (), object()

    def _remove_if_done(self, sequence: Sequence) -> None:
        if sequence.phase is Phase.DONE:
            self.running = tuple(one for one in self.running if one is not sequence)
            self._news = object()

    def _next(self, runner: SequenceRunner) -> Sequence | None:
        news = self._news
        most = self.parallel if self.parallel == 1 else 2 * self.parallel
        if news is self._seen or len(self.running) >= most:
            return None
        # Running sequences get free memory first; otherwise one of them might never get any.
        if any(one.lacks_memory for one in self.running):
            return None
        for sequence in sorted(self.waiting, key=_order):
            better = [one for one in self.running if one.rank <= sequence.rank]
            if sequence.passed >= PATIENCE:  # otherwise more urgent ones would starve it
                better = [one for one in better if one.arrival < sequence.arrival]
            if len(better) >= self.parallel:
                continue
            if sequence.phase is Phase.NEW:
                runner.encode(sequence)
            if sequence.phase is Phase.DONE:  # its prompt was refused
                self.withdraw(sequence)
            elif not runner.is_being_computed(sequence, self.running):
                # The most urgent sequence does not wait for the others' memory.
                is_urgent = all(sequence.rank < one.rank for one in self.running)
                if is_urgent or sequence.cancelled or runner.has_room(sequence):
                    return sequence
                break  # sequences behind it must not take memory before it
        self._seen = news
        return None

    def _choose(self, runner: SequenceRunner) -> list[Sequence]:
        order = sorted(self.running, key=_order)
        first = min(order, key=lambda one: (one.rank, one.arrival), default=None)
        active = order[: self.parallel]

        def may_grow(sequence: Sequence) -> bool:
            got = sequence.cancelled or runner.reserve(sequence, anyway=sequence is first)
            sequence.lacks_memory = not got
            return got

        prefilling = [one for one in active if one.phase is Phase.PREFILLING]
        decoding = [one for one in active if one.phase is Phase.DECODING]
        chosen: list[Sequence] = []
        if self._chunk_was_last or not prefilling:
            chosen = [one for one in decoding if may_grow(one)]
        if not chosen and prefilling:
            found = _next_to_prefill(prefilling[0], order)
            known = [one for one in prefilling if one.tokens_left <= 1]  # nothing to compute
            chosen = known if found in known else [found]
        if not chosen and first is not None:  # it is paused, and the others lack memory
            chosen = [first] if may_grow(first) else []
        for one in order:
            one.passed += 1
        for one in chosen:
            one.passed = 0
        return chosen


def _order(sequence: Sequence) -> tuple[bool, int, tuple[int, bool, int], int]:
    """The sort key of a sequence; lower goes first. Among those out of patience, the one passed
    over most goes first, so that urgent ones do not take all turns."""
    impatience = max(0, sequence.passed - PATIENCE + 1)
    return not sequence.cancelled, -impatience, sequence.rank, sequence.arrival


def _next_to_prefill(first: Sequence, running: list[Sequence]) -> Sequence:
    peers = [one for one in running if one.phase is Phase.PREFILLING and one.rank == first.rank]
    found = min(
        peers,
        key=lambda one: (
            not one.cancelled,
            one.overtaken < MOST_OVERTAKEN,
            one.tokens_left,
            one.arrival,
        ),
    )
    for one in peers:
        one.passed = 0
        one.overtaken += one.arrival < found.arrival
    found.overtaken = 0
    return found
