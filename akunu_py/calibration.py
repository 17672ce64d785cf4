"""Calibration: measures what forwards of the loaded model cost, and keeps the result.

It times rounds as decoding runs them, on a cache of its own. It measures all sizes in turn, so that
a busy moment cannot affect only one of them, and keeps the shortest time of each: the time without
other load. The time for measuring is fixed: a slow model gets fewer points. No request waits for
it: until a curve is measured, `find_cost_curve` returns what is expected.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import pairwise
from random import Random
from time import perf_counter, time
from typing import Final

import mlx.core as mx

from akunu_py.backend import Backend
from akunu_py.blas import Blas, load_blas
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.loop import Limits, decode
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import Draft
from akunu_py.errors import BackendError
from akunu_py.model import TargetModel
from akunu_py.options import Sampling
from akunu_py.package import __version__
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.cost_store import CostKey, CostStore, fingerprint, judged
from akunu_py.planning.published import expected_curve
from akunu_py.sampling.sampler import Sampler

SIZES: Final = (1, 2, 5, 3, 9, 17, 33, 4, 6, 8, 11, 13, 16, 21, 25, 32)
"""Tokens per round to measure, the most informative first; steps between them are searched for."""

CONTEXTS: Final = (128, 1024, 4096)
"""Context lengths: all sizes at the first, a few at the others."""

BUDGET_S: Final = 2.5
"""How many seconds measuring takes, if nothing else is asked for."""

_OTHER_SIZES: Final = (1, 5, 17)
"""Sizes at the other contexts, which only say what a longer context adds."""
_PASSES: Final = 9
_MIN_PASSES: Final = 2
"""How often each size is measured: as time allows, but twice, or one busy moment would decide."""
_STEPS_PER_TURN: Final = 4
"""Pipelined steps are timed together: one alone would not overlap with another."""

_MOST_STEPS: Final = _STEPS_PER_TURN + 2
"""How many tokens they append: one more to begin, and one that is submitted ahead."""

_JUMP: Final = 0.15
_MAX_HALVINGS: Final = 6
"""Where the cost rises by more than this part from one size to the next, sizes between them are
measured, at most so many: kernels change at some size, and rounds should end before it."""

_MAX_CACHE_BYTES: Final = 512 << 20
"""Contexts whose cache takes more are not measured: the machine may have no room for it."""

_CLEARLY_FASTER: Final = 0.95
"""What takes at most this part of the usual way's time replaces it; less may be noise."""
_FEW: Final = 5
"""The size that stands for rounds with a draft where BLAS threads are chosen."""
_THREADS_SHARE: Final = 0.2
_SPLIT_SHARE: Final = 0.1
"""Parts of the time for choosing the number of threads, and attentions in parts."""
_SPLIT_SIZES: Final = (5, 9, 13, 17, 33)
_SPLIT_PASSES: Final = 3
"""Sizes at which attention in parts is tried, one more than the numbers of rows at which MLX's
kernels change, and how often."""

CalibrationProgress = Callable[[float, float], None]
"""Called with the seconds spent so far, and the seconds to spend; may raise to end it."""


class NoCurveError(Exception):
    """The model's cache cannot be rolled back, so its costs cannot be measured."""


def find_cost_curve(
    model: TargetModel, backend: Backend, *, store: CostStore | None = None
) -> CostCurve:
    """The costs of a model on this machine: stored ones, else what is expected of the chip.

    Measures nothing. If the curve is doubted, it is corrected by rounds of requests.
    """
    curve = (store or CostStore()).load(cost_key(model, backend))
    if curve is None:
        return expected_curve(backend.device, backend.chip)
    _use(model, curve)
    return curve


def measure_and_store(
    model: TargetModel,
    backend: Backend,
    *,
    budget_s: float = BUDGET_S,
    contexts: Sequence[int] | None = None,
    store: CostStore | None = None,
    progress: CalibrationProgress | None = None,
) -> CostCurve:
    """Measures the costs of a model, and keeps them if they are plausible.

    Args:
        contexts: as `measure_cost_curve` has it; None takes the usual ones.

    Raises:
        NoCurveError: if the model's cache cannot be rolled back.
        BackendError: if the costs are not plausible.
    """
    before = os.getloadavg()[0] / (os.cpu_count() or 1)
    curve = measure_cost_curve(
        model, budget_s=budget_s, contexts=contexts or contexts_of(model), progress=progress
    )
    curve = judged(replace(curve, measured_at=time(), load=round(before, 2)))
    try:
        (store or CostStore()).save(cost_key(model, backend), curve)
    except ValueError as error:
        raise BackendError(
            f"The measured costs cannot be true ({error}): something else kept the machine busy; "
            "try again when it is idle."
        ) from error
    _use(model, curve)
    return curve


def _use(model: TargetModel, curve: CostCurve) -> None:
    """Lets forwards be computed as they were when these costs were measured."""
    if curve.blas_threads is not None and (blas := load_blas()):
        blas.use_threads(curve.blas_threads)
    if model.row_split is not None:
        model.row_split.most_rows = {level.context: level.split_rows for level in curve.levels}


def cost_key(model: TargetModel, backend: Backend) -> CostKey:
    """Everything that the costs depend on."""
    return CostKey(
        device=backend.device,
        chip=backend.chip,
        blas=backend.blas,
        threads=backend.threads,
        mlx=version("mlx"),
        akunu=__version__,
        model=f"{model.name} on {model.ranks}" if model.ranks else model.name,
        fingerprint=fingerprint(model.config),
        parameter_bytes=model.parameter_bytes,
        layout=model.layout,
        kv_cache=str(model.kv_cache_form),
    )


def contexts_of(model: TargetModel) -> tuple[int, ...]:
    """The context lengths to measure at: `CONTEXTS`, and where the cache begins to be quantized."""
    start = 0 if model.kv_quantization is None else model.kv_quantization.start
    return (*CONTEXTS, start) if start > CONTEXTS[0] else CONTEXTS


def measure_cost_curve(
    model: TargetModel,
    *,
    budget_s: float = BUDGET_S,
    contexts: Sequence[int] = CONTEXTS,
    progress: CalibrationProgress | None = None,
) -> CostCurve:
    """Measures the costs of a model, and frees the memory that this took.

    On a CPU it first measures with how many threads the BLAS is fastest, and leaves it so.

    Args:
        model: a model whose cache can be rolled back.
        budget_s: about how many seconds to spend; a slow model may take longer.
        contexts: context lengths to measure at, as far as the model and the memory allow.
        progress: called often.

    Raises:
        NoCurveError: if the model's cache cannot be rolled back.
    """
    try:
        return _measure(model, budget_s, _measurable(contexts, model), progress)
    finally:
        mx.clear_cache()


def _measurable(contexts: Sequence[int], model: TargetModel) -> list[int]:
    """The contexts to measure at, ascending, the first as far as the model allows.

    One whose steps would pass the length from which on the cache is quantized, and could not be
    taken back, gives way to that length.
    """
    first, *others = sorted(contexts)
    wanted = [min(first, model.context_length // 2), *others]
    if model.kv_quantization is None:
        return sorted(set(wanted))
    start = model.kv_quantization.start
    passing = range(start - _MOST_STEPS, start)
    return sorted({start if context in passing else context for context in wanted})


def _measure(
    model: TargetModel,
    budget_s: float,
    contexts: Sequence[int],
    progress: CalibrationProgress | None,
) -> CostCurve:
    first = _Bench(model, contexts[0])
    begun = perf_counter()
    other_contexts = [context for context in contexts[1:] if first.allows(context)]
    # The first level matters most for planning, so it gets most of the time.
    share = 1.0 if not other_contexts else 0.7

    def tick() -> None:
        if progress:
            progress(min(perf_counter() - begun, budget_s), budget_s)

    def few(bench: _Bench = first) -> float:
        tick()
        return bench.seconds()

    threads = _choose_threads(load_blas(), few, begun + _THREADS_SHARE * budget_s)
    first.choose_split(perf_counter() + _SPLIT_SHARE * budget_s)
    levels = [first.measure(SIZES, begun + share * budget_s, tick, between=True)]
    del few, first
    for index, context in enumerate(other_contexts, start=1):
        if perf_counter() - begun < budget_s:
            until = (share + (1.0 - share) * index / len(other_contexts)) * budget_s
            bench = _Bench(model, context)
            bench.choose_split(perf_counter() + _SPLIT_SHARE * budget_s)
            levels.append(bench.measure(_OTHER_SIZES, begun + until, tick))
            del bench
    return CostCurve(tuple(levels), threads)


def _choose_threads(blas: Blas | None, measure: Callable[[], float], until: float) -> int | None:
    """With how many threads a BLAS is fastest, which it then uses; None if there is no choice.

    Other work on the machine makes every time longer, so the shortest of each counts. The usual
    number stays unless another is clearly faster.

    Args:
        blas: the one to choose for.
        measure: computes, and returns how long it took.
        until: when to stop, on `perf_counter`'s clock.
    """
    if blas is None or len(blas.choices) < 2:
        return None
    times: dict[int, list[float]] = {threads: [] for threads in blas.choices}
    usual = blas.choices[0]
    try:
        while perf_counter() < until or not all(times.values()):
            for threads, seconds in times.items():
                blas.use_threads(threads)
                measure()  # a warm-up: threads are started
                seconds.append(measure())
    except BaseException:  # a request came
        blas.use_threads(usual)
        raise
    best = min(blas.choices, key=lambda threads: min(times[threads]))
    chosen = best if min(times[best]) < _CLEARLY_FASTER * min(times[usual]) else usual
    blas.use_threads(chosen)
    return chosen


def faster_in_parts(
    seconds: Callable[[int, bool], float], sizes: Iterable[int], until: float
) -> int:
    """The most tokens of a forward whose attention is clearly faster in parts; 0 if none is.

    The shortest of several times counts, because other work makes every time longer. Sizes above
    one at which parts are slower are not tried.

    Args:
        seconds: computes a forward of some size, in parts or not, and returns how long it took.
        sizes: those to try, ascending.
        until: when to stop, on `perf_counter`'s clock.
    """
    most = 0
    for size in sizes:
        turns = [(seconds(size, False), seconds(size, True)) for _ in range(_SPLIT_PASSES)]
        whole, parts = map(min, zip(*turns, strict=True))
        if parts < _CLEARLY_FASTER * whole:
            most = size
        if parts > whole or perf_counter() > until:
            break
    return most


class _Bench:
    """Times forwards on a cache of a certain length.

    The contents of the cache are arbitrary: costs do not depend on them.
    """

    def __init__(self, model: TargetModel, context: int) -> None:
        self._model = model
        self._context = context
        draw = Random(0)
        # Different tokens, because a mixture of experts sends them to different experts.
        self._tokens = [draw.randrange(model.vocabulary_size) for _ in range(max(SIZES))]
        cache = model.make_cache(context + max(SIZES) + _STEPS_PER_TURN + 4)
        if not cache.can_roll_back:
            raise NoCurveError(f"The cache of {model.name} cannot be rolled back.")
        self._cache = cache
        self._target = ModelTarget(model, cache, Sampler(Sampling()), max(SIZES) - 1)
        for size in (1, 2):  # a warm-up: some work is done only once per process
            self._round(size)
        cache.evaluate()
        cache.rollback(0)
        cache.skip(context)
        cache.keep()  # what `_steps` returns to

    def seconds(self) -> float:
        """Seconds of a step and a round of a few tokens."""
        return self._round(1) + self._round(_FEW)

    def allows(self, context: int) -> bool:
        """Whether another context length fits the model and takes little memory."""
        bytes_per_token = self._cache.nbytes / self._cache.capacity
        room = self._model.context_length - max(SIZES) - _STEPS_PER_TURN
        return self._context < context <= room and context * bytes_per_token < _MAX_CACHE_BYTES

    def choose_split(self, until: float) -> None:
        """Decides which forwards at this context compute their attentions in parts."""
        split = self._model.row_split
        if split is None:
            return

        def seconds(size: int, in_parts: bool) -> float:
            split.most_rows[self._context] = size * in_parts
            return self._round(size)

        def is_split(size: int) -> bool:
            before = split.count
            seconds(size, in_parts=True)  # a warm-up, too
            return split.count > before

        sizes = (size for size in _SPLIT_SIZES if is_split(size))
        split.most_rows[self._context] = faster_in_parts(seconds, sizes, until)

    def measure(
        self,
        sizes: Sequence[int],
        until: float,
        tick: Callable[[], None],
        *,
        between: bool = False,
    ) -> CostLevel:
        """Times as many sizes as often as time allows, and always size 1.

        Args:
            sizes: tokens per round, the most important first.
            until: when to stop, on `perf_counter`'s clock.
            tick: called often.
            between: whether to search for steps between the sizes.
        """
        rounds: dict[int, list[float]] = {}
        for size in sizes:
            self._round(size)  # a warm-up
            rounds[size] = [self._round(size)]
            tick()
            next_pass = sum(min(times) for times in rounds.values())
            if len(rounds) > 1 and perf_counter() + next_pass > until:
                break
        self._steps()
        steps = [self._steps()]
        for turn in range(1, _PASSES):
            if turn >= _MIN_PASSES and perf_counter() > until:
                break
            steps.append(self._steps())
            for size, times in rounds.items():
                times.append(self._round(size))
                tick()
            if between and turn + 1 == _MIN_PASSES:
                self._measure_between(rounds, until)
        points = tuple(sorted((size, min(times)) for size, times in rounds.items()))
        split = self._model.row_split
        split_rows = 0 if split is None else split.most_rows.get(self._context, 0)
        return CostLevel(self._context, min(steps), points, split_rows)

    def _measure_between(self, rounds: dict[int, list[float]], until: float) -> None:
        """Measures in the middle of the gaps where the cost jumps, the largest jump first."""
        for _ in range(_MAX_HALVINGS):
            known = sorted((size, min(times)) for size, times in rounds.items())
            jumps = [
                ((high - low) / low, (below + above) // 2)
                for (below, low), (above, high) in pairwise(known)
                if above - below > 1
            ]
            jump, size = max(jumps, default=(0.0, 0))
            if jump < _JUMP or perf_counter() > until:
                return
            self._round(size)
            rounds[size] = [self._round(size) for _ in range(_MIN_PASSES)]

    def _round(self, size: int) -> float:
        """Seconds of one round as decoding runs it: submit a forward, wait for it, roll back."""
        target, start = self._target, self._target.length
        draft = Draft(tuple(self._tokens[1:size]))
        begun = perf_counter()
        target.read(target.submit(self._tokens[0], draft))
        target.rollback(start)
        return perf_counter() - begun

    def _steps(self) -> float:
        """Seconds of a pipelined single-token step, the mean of a few."""
        limits = Limits(_STEPS_PER_TURN + 3, frozenset())
        rounds = decode(self._target, DraftSession(), self._tokens[0], limits)
        next(rounds)
        begun = perf_counter()
        for _ in range(_STEPS_PER_TURN):
            next(rounds)
        seconds = (perf_counter() - begun) / _STEPS_PER_TURN
        self._cache.evaluate()  # waits for the step that was submitted ahead
        self._cache.rollback(self._context)
        return seconds
