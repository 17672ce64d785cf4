"""ForwardTimes: how long forward passes of a model take, run as in decoding, on their own cache.

All sizes are timed in turn, so that a busy moment cannot affect only one of them. The shortest time
of each counts, because it is the time without other load.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Final

from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import Draft
from akunu_py.errors import InvalidRequestError
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostLevel
from akunu_py.sampling.sampler import Sampler

SIZES: Final = (1, 2, 5, 3, 9, 17, 33, 4, 6, 8, 11, 13, 16, 21, 25, 32)
"""Numbers of tokens per round to measure, the most informative first."""

_PASSES: Final = 9
_MIN_PASSES: Final = 2
"""How often each size is measured, as time allows: a single time may be a busy moment."""
_STEPS_PER_TURN: Final = 4
"""Pipelined steps are timed together: one alone would not overlap with another."""

MOST_STEPS: Final = _STEPS_PER_TURN + 2
"""How many tokens they append: one more to begin, and one that is submitted ahead."""

_MAX_CACHE_BYTES: Final = 512 << 20
"""Contexts with a larger cache are not measured: there may be no memory for it."""

_LONG_S: Final = 0.05
"""If the steps together take longer, they can be interrupted in between."""


@dataclass
class LevelTimes:
    """The seconds found so far at one context: of pipelined steps, and of rounds by their size,
    each size's first in `warm_ups`. `compiling_s` of a GPU's kernels does not count against the
    limit.
    """

    steps: list[float] = field(default_factory=list)
    rounds: dict[int, list[float]] = field(default_factory=dict)
    warm_ups: dict[int, float] = field(default_factory=dict)
    compiling_s: float = 0.0

    def note_warm_up(self, first_s: float, later_s: float) -> float:
        lost_s = max(0.0, first_s - later_s)
        self.compiling_s += lost_s
        return lost_s


class ForwardTimes:
    """Times forward passes after `context` arbitrary tokens: costs do not depend on them. A model
    whose cache cannot be rolled back is refused.
    """

    def __init__(self, model: TargetModel, context: int) -> None:
        self.context = context
        self._model = model
        draw = Random(0)
        # Different tokens, so that a mixture of experts uses different experts.
        self._tokens = [draw.randrange(model.vocabulary_size) for _ in range(max(SIZES))]
        cache = model.make_cache(context + max(SIZES) + _STEPS_PER_TURN + 4)
        if not cache.can_rollback:
            raise InvalidRequestError(
                f"The cache of {model.name} cannot be rolled back, so there are no rounds to "
                "measure."
            )
        self._cache = cache
        self._target = ModelTarget(model, cache, Sampler(Sampling()), max(SIZES) - 1)
        for size in (1, 2):  # a warm-up: some work is done only once per process
            self.round(size)
        cache.evaluate()
        cache.rollback(0)
        cache.skip(context)
        cache.keep()  # what `_steps` returns to

    def allows(self, context: int) -> bool:
        bytes_per_token = self._cache.nbytes / self._cache.capacity
        room = self._model.context_length - max(SIZES) - _STEPS_PER_TURN
        return self.context < context <= room and context * bytes_per_token < _MAX_CACHE_BYTES

    def measure(
        self, sizes: Sequence[int], until: float, tick: Callable[[], None], found: LevelTimes
    ) -> CostLevel:
        """Times the sizes in order, at least size 1, and then all again and again until time is up.
        Calls `tick` between forward passes; if that raises, `found` has the results so far, and can
        be passed again.
        """
        steps, rounds = found.steps, found.rounds
        for size in sizes:
            until += self._time_first(size, found, tick)
            next_pass = sum(min(times) for times in rounds.values())
            if len(rounds) > 1 and perf_counter() + next_pass > until:
                break
        # Each pass times what was timed least, which continues a pass that was ended early.
        while (turn := min(map(len, (steps, *rounds.values())))) < _PASSES:
            if turn >= _MIN_PASSES and perf_counter() > until:
                break
            if len(steps) == turn:
                steps.append(self._steps(tick))
                tick()
            for size, times in rounds.items():
                if len(times) == turn:
                    times.append(self.round(size))
                    tick()
        points = tuple(sorted((size, min(times)) for size, times in rounds.items()))
        return CostLevel(self.context, min(steps), points)

    def _time_first(self, size: int, found: LevelTimes, tick: Callable[[], None]) -> float:
        """Times a size after a warm-up, if it has no time; returns how much longer that took."""
        if size in found.rounds:
            return 0.0
        if size not in found.warm_ups:
            found.warm_ups[size] = self.round(size)
            tick()
        found.rounds[size] = [self.round(size)]
        lost_s = found.note_warm_up(found.warm_ups[size], found.rounds[size][0])
        tick()
        return lost_s

    def round(self, size: int) -> float:
        """Seconds of one round as decoding runs it: submit a forward pass, wait for it, roll
        back."""
        target, start = self._target, self._target.length
        draft = Draft(tuple(self._tokens[1:size]))
        begun = perf_counter()
        target.read(target.submit(self._tokens[0], draft))
        target.rollback(start)
        return perf_counter() - begun

    def _steps(self, tick: Callable[[], None]) -> float:
        limits = Limits(_STEPS_PER_TURN + 3, frozenset())
        rounds = run_alone(self._target, DraftSession(), self._tokens[0], limits)
        try:
            next(rounds)
            begun = perf_counter()
            for _ in range(_STEPS_PER_TURN):
                next(rounds)
                if perf_counter() - begun > _LONG_S:
                    tick()
            return (perf_counter() - begun) / _STEPS_PER_TURN
        finally:
            self._cache.evaluate()  # waits for the step submitted ahead
            self._cache.rollback(self.context)
