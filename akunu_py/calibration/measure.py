"""Calibration: measures what forward passes of the loaded model cost, and stores the result.

The time for measuring is fixed, so a slow model gets fewer points. No request waits for it: until a
curve has been measured, `find_cost_curve` returns the expected costs of the chip.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib.metadata import version
from math import inf
from statistics import mean
from time import perf_counter, time
from typing import Final

import mlx.core as mx

from akunu_py.calibration.cost_store import CostKey, CostStore, expected_curve, judged
from akunu_py.calibration.forward_times import MOST_STEPS, SIZES, ForwardTimes, LevelTimes
from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.errors import BackendError
from akunu_py.machine.backend import Backend, other_load
from akunu_py.machine.blas import Blas, load_blas
from akunu_py.model.target_model import TargetModel
from akunu_py.package import __version__
from akunu_py.planning.cost_curve import CLEARLY_FASTER, MEASURED, CostCurve, CostLevel

CONTEXTS: Final = (128, 1024, 4096)
"""Context lengths: all sizes are measured at the first, a few at the others."""

BUDGET_S: Final = 2.5

ROW_CLASS_S: Final = 240.0
"""The most seconds to search for forward passes that compute identical rows."""

_OTHER_SIZES: Final = (1, 5, 17)
"""Sizes at the other contexts, before padding: they only show what a longer context adds."""
_FEW: Final = 5
"""The size that stands for all drafts in the choice of the number of BLAS threads."""
_FIRST_SHARE: Final = 0.7
"""The fraction of the time for the first context, which matters most for planning."""
_MIN_TURNS: Final = 2
_THREADS_SHARE: Final = 0.2
"""The fraction of the time for choosing the number of threads."""

CalibrationProgress = Callable[[float, float], None]
"""Called with the seconds spent and the seconds to spend; may raise to end the measurement."""


@dataclass
class Unfinished:
    """The results of a measurement so far; a measurement that was ended early continues with them.
    `spent_s` is without `compiling_s`; `thread_times` counts until `threads` is chosen; `level` is
    the next of `levels`; `loads` are processes per core at several moments.
    """

    spent_s: float = 0.0
    compiling_s: float = 0.0
    threads: int | None = None
    thread_times: dict[int, list[float]] = field(default_factory=dict)
    levels: list[CostLevel] = field(default_factory=list)
    level: LevelTimes = field(default_factory=LevelTimes)
    loads: list[float] = field(default_factory=list)
    row_classes: RowClassSearch | None = None


Calibrate = Callable[[TargetModel, Backend], CostCurve]
"""Returns the known or expected costs of a model's forward passes on a machine."""


def find_cost_curve(
    model: TargetModel, backend: Backend, *, store: CostStore | None = None
) -> CostCurve:
    """The stored costs of a model on this machine, else those expected of the chip."""
    curve = (store or CostStore()).load(cost_key(model, backend))
    return _apply(model, curve or expected_curve(backend.device, backend.chip))


def measure_and_store(
    model: TargetModel,
    backend: Backend,
    *,
    budget_s: float = BUDGET_S,
    contexts: Sequence[int] | None = None,
    store: CostStore | None = None,
    progress: CalibrationProgress | None = None,
    found: Unfinished | None = None,
) -> CostCurve:
    """Measures the costs of a model; see `measure_cost_curve`. Stores them, unless they are
    doubtful and the stored ones are not. Raises a `BackendError` if they are not plausible.
    """
    found = found or Unfinished()
    curve = measure_cost_curve(
        model, budget_s=budget_s, contexts=contexts, progress=progress, found=found
    )
    load = mean(found.loads or [other_load()]) if backend.is_cpu else None
    store, key = store or CostStore(), cost_key(model, backend)
    known = store.load(key)
    curve = replace(curve, measured_at=time(), load=load and round(load, 2))
    curve = judged(replace(curve, row_class=known.row_class if known else None))
    if known is not None and known.doubt <= MEASURED < curve.doubt:
        return _apply(model, curve)  # what was measured on an idle machine stays
    try:
        store.save(key, curve)
    except ValueError as error:
        raise BackendError(
            f"The measured costs are impossible ({error}): the machine was busy with something "
            "else; try again when it is idle."
        ) from error
    return _apply(model, curve)


def find_row_class(
    model: TargetModel,
    backend: Backend,
    curve: CostCurve,
    *,
    limit_s: float = ROW_CLASS_S,
    most_price: float = inf,
    store: CostStore | None = None,
    progress: CalibrationProgress | None = None,
    found: Unfinished | None = None,
) -> CostCurve:
    """Adds to measured costs which forward passes compute identical rows, and stores both. Passes
    above `most_price` (see `price_of_class`) are not looked for; if there are none, it takes a
    second or two. `found` continues an earlier call that `progress` ended.
    """
    found = found or Unfinished()
    search = found.row_classes or RowClassSearch(backend.attention_edges, contexts_of(model))
    found.row_classes = search

    def tick() -> None:
        if progress:
            progress(search.spent_s, limit_s)

    padding, model.padding = model.padding, {}
    try:
        with model.guard():
            row_class = search.find(model, curve, limit_s, tick, most_price)
    finally:
        model.padding = padding
        mx.clear_cache()
    curve = replace(curve, row_class=row_class)
    (store or CostStore()).save(cost_key(model, backend), curve.unpadded)
    return curve


def _apply(model: TargetModel, curve: CostCurve) -> CostCurve:
    """Sets the model up as it was when these costs were measured; returns the costs of rounds,
    padded where that is faster, if the costs are certain and rolling back is free."""
    if curve.blas_threads is not None and (blas := load_blas()):
        blas.use_threads(curve.blas_threads)
    if curve.doubt > MEASURED or model.make_cache(1).needs_checkpoints:
        return curve
    model.padding = curve.padding
    return curve.padded


def cost_key(model: TargetModel, backend: Backend) -> CostKey:
    """Everything that the costs of a model depend on."""
    config = json.dumps(model.config, sort_keys=True, default=str)
    return CostKey(
        device=backend.device,
        chip=backend.chip,
        blas=backend.blas,
        threads=backend.threads,
        mlx=version("mlx"),
        akunu=__version__,
        model=f"{model.name} on {model.ranks}" if model.ranks else model.name,
        fingerprint=sha256(config.encode()).hexdigest()[:16],
        parameter_bytes=model.parameter_bytes,
        layout=model.layout,
        kv_cache=str(model.kv_cache_form),
    )


def measure_cost_curve(
    model: TargetModel,
    *,
    budget_s: float = BUDGET_S,
    contexts: Sequence[int] | None = None,
    progress: CalibrationProgress | None = None,
    found: Unfinished | None = None,
) -> CostCurve:
    """Measures the costs of a model for about `budget_s` (longer if it is slow). On a CPU, it first
    chooses the number of BLAS threads. Default contexts: `CONTEXTS`, and where quantization starts,
    as far as the model and memory allow. `found` continues an earlier call that `progress` ended. A
    model whose cache cannot be rolled back is refused.
    """
    padding, model.padding = model.padding, {}
    try:
        with model.guard():
            wanted = contexts_of(model, contexts)
            return _measure(model, budget_s, wanted, progress, found or Unfinished())
    finally:
        model.padding = padding
        mx.clear_cache()


def contexts_of(model: TargetModel, wanted: Sequence[int] | None = None) -> list[int]:
    """The contexts to measure at, ascending, the first no longer than the model allows.

    Steps across the length at which the cache is quantized cannot be rolled back, so such a context
    is replaced by that length.
    """
    start = 0 if model.kv_quantization is None else model.kv_quantization.start
    first, *others = sorted(wanted or (*CONTEXTS, max(start, CONTEXTS[0])))
    contexts = [min(first, model.context_length // 2), *others]
    passing = range(start - MOST_STEPS, start)
    return sorted({start if context in passing else context for context in contexts})


def _measure(
    model: TargetModel,
    budget_s: float,
    contexts: Sequence[int],
    progress: CalibrationProgress | None,
    found: Unfinished,
) -> CostCurve:
    times, levels = ForwardTimes(model, contexts[0]), found.levels
    begun = perf_counter() - found.spent_s - found.compiling_s - found.level.compiling_s
    others = [context for context in contexts[1:] if times.allows(context)]
    share = _FIRST_SHARE if others else 1.0

    def spent_s() -> float:
        return perf_counter() - begun - found.compiling_s - found.level.compiling_s

    def tick() -> None:
        found.spent_s = spent_s()
        found.loads.append(other_load())
        if progress:
            progress(min(found.spent_s, budget_s), budget_s)

    def time_short_rounds() -> float:
        seconds = times.round(1)
        tick()
        seconds += times.round(_FEW)
        tick()
        return seconds

    def add_level(sizes: Sequence[int], part: float) -> None:
        until = perf_counter() + part * budget_s - spent_s()
        levels.append(times.measure(sizes, until, tick, found.level))
        found.compiling_s += found.level.compiling_s
        found.level = LevelTimes()

    if found.threads is None:
        until = perf_counter() + _THREADS_SHARE * budget_s - spent_s()
        found.threads = choose_threads(load_blas(), time_short_rounds, until, found.thread_times)
    if not levels:
        add_level(SIZES, share)
    padding = CostCurve((levels[0],)).padding
    for index, context in enumerate(others, start=1):
        if index == len(levels) and spent_s() < budget_s:
            del times  # memory for one cache at a time
            times = ForwardTimes(model, context)
            part = share + (1.0 - share) * index / len(others)
            add_level([padding.get(size, size) for size in _OTHER_SIZES], part)
    return CostCurve(tuple(levels), found.threads)


def choose_threads(
    blas: Blas | None,
    measure: Callable[[], float],
    until: float,
    times: dict[int, list[float]],
) -> int | None:
    """Makes a BLAS use the fastest number of threads; None if there is no choice. It ends when
    `perf_counter` passes `until`. If `measure` raises, `times` has the results so far.

    The shortest of several times counts, because other work makes times longer. The usual number
    stays unless another is clearly faster.
    """
    if blas is None or len(blas.choices) < 2:
        return None
    usual = blas.choices[0]
    times |= {threads: times.get(threads, []) for threads in blas.choices}
    try:
        while (fewest := min(map(len, times.values()))) < _MIN_TURNS or perf_counter() < until:
            for threads, seconds in times.items():
                if len(seconds) == fewest:
                    blas.use_threads(threads)
                    measure()  # a warm-up: threads are started
                    seconds.append(measure())
    except BaseException:  # a request came
        blas.use_threads(usual)
        raise
    best = min(blas.choices, key=lambda threads: min(times[threads]))
    chosen = best if is_clearly_faster(times[best], times[usual]) else usual
    blas.use_threads(chosen)
    return chosen


def is_clearly_faster(seconds: Sequence[float], usual: Sequence[float]) -> bool:
    """Whether the shortest time is clearly shorter in both halves of the turns, so that one busy
    moment cannot decide; False for fewer than two turns."""
    half = len(seconds) // 2
    parts = (slice(None, half), slice(half, None))
    return half > 0 and all(
        min(seconds[part]) < CLEARLY_FASTER * min(usual[part]) for part in parts
    )
