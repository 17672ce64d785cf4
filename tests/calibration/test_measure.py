"""Measuring a tiny model: which points, for how long, and without side effects."""

import errno
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from time import perf_counter, time

import pytest

import akunu_py
from akunu_py import Options
from akunu_py.calibration import cost_store, forward_times
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.cost_store import CostStore
from akunu_py.calibration.forward_times import ForwardTimes
from akunu_py.calibration.measure import (
    CONTEXTS,
    Unfinished,
    cost_key,
    find_cost_curve,
    is_clearly_faster,
    measure_and_store,
    measure_cost_curve,
)
from akunu_py.engine import Engine
from akunu_py.errors import BackendError
from akunu_py.machine.backend import find_backend
from akunu_py.machine.blas import load_blas
from akunu_py.model.loading import load_target
from akunu_py.model.target_model import TargetModel
from akunu_py.options import ModelOptions
from akunu_py.planning.cost_curve import DOUBTFUL, MEASURED, CostCurve, CostLevel
from akunu_py.planning.row_class import FREE, RowClass
from tests.architectures import make_model
from tests.planning.curves import FLAT, LINEAR
from tests.tiny_model import write_tiny_model

# Each module is imported before the session's fixture replaces what measures.
measure = measure_cost_curve


@pytest.fixture(autouse=True)
def _the_number_of_threads_stays() -> Iterator[None]:
    yield
    if blas := load_blas():
        blas.use_threads(blas.threads)


def test_both_costs_are_measured_at_several_sizes_and_contexts(model: TargetModel) -> None:
    news: list[float] = []
    curve = measure(model, budget_s=0.4, progress=lambda spent, _: news.append(spent))
    assert [level.context for level in curve.levels] == list(CONTEXTS[: len(curve.levels)])
    sizes = [size for size, _ in curve.levels[0].verify_s]
    assert sizes[0] == 1
    assert len(sizes) >= 2
    assert curve.decode_s(128) > 0
    assert news[0] < news[-1]


def test_a_slow_model_gets_fewer_points(model: TargetModel) -> None:
    curve = measure(model, budget_s=0.0)
    assert [size for size, _ in curve.levels[0].verify_s] == [1, 2]
    assert len(curve.levels) == 1


class Clock:
    """Time that only forwards take: a round of a size takes `seconds(size, now)`, and each look at
    the clock a moment."""

    def __init__(
        self, patch: pytest.MonkeyPatch, seconds: Callable[[int, float], float], compile_s: float
    ) -> None:
        self.now, self.forwards = 0.0, 0
        compiled, computed = set[int](), ForwardTimes.round

        def round_(times: ForwardTimes, size: int) -> float:
            computed(times, size)
            took = seconds(size, self.now) + (0.0 if size in compiled else compile_s)
            compiled.add(size)
            self.now += took
            self.forwards += 1
            return took

        patch.setattr(ForwardTimes, "round", round_)
        for module in (calibration, forward_times):
            patch.setattr(module, "perf_counter", self)

    def __call__(self) -> float:
        self.now += 1e-5
        return self.now


def test_what_is_compiled_first_takes_no_time_from_the_others(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, lambda *_: 0.001, compile_s=0.5)
    (level, *_) = measure(model, budget_s=1.0).levels
    assert {size for size, _ in level.verify_s} >= {*forward_times.SIZES}


def test_a_chip_that_gets_warm_leaves_the_ratios(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a fifth slower at the end: all sizes take turns, so none is timed only then."""
    Clock(monkeypatch, lambda size, now: 1e-3 * (1 + size / 10) * (1 + now / 5), compile_s=0.0)
    (level, *_) = measure(model, budget_s=1.0, contexts=(64,)).levels
    costs = dict(level.verify_s)
    assert len(costs) >= len(forward_times.SIZES)
    for size, cost in costs.items():
        assert cost / costs[1] == pytest.approx((1 + size / 10) / 1.1, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "faster"),
    [([3, 3, 3, 3], True), ([3, 3, 4, 4], False), ([4, 3, 4, 4], False), ([3], False), ([], False)],
)
def test_only_what_is_faster_twice_is_clearly_faster(seconds: list[float], faster: bool) -> None:
    assert is_clearly_faster(seconds, [4.0] * len(seconds)) == faster


@pytest.mark.parametrize("every", [2, 3, 10, 20])
def test_a_measurement_ends_however_often_requests_come(
    model: TargetModel, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Each forward that was computed counts, and compiling takes no time from the others."""
    clock = Clock(monkeypatch, lambda *_: 0.01, compile_s=0.5)

    def interrupt(*_: float) -> None:
        if next(ticks) % every == 0:
            raise InterruptedError

    monkeypatch.setattr(calibration, "load_blas", lambda: None)
    found, ticks, curve = Unfinished(), count(1), None
    while curve is None:
        assert clock.forwards < 1000
        with suppress(InterruptedError):
            curve = measure(model, budget_s=2.5, contexts=(64,), progress=interrupt, found=found)
    assert {size for size, _ in curve.levels[0].verify_s} >= {*forward_times.SIZES}


@pytest.fixture
def edge_at_eight(model: TargetModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rounds over eight rows are faster than over seven; returns each context and size timed."""
    monkeypatch.setattr(model, "padding", {3: 4})
    timed: list[tuple[int, int]] = []
    compute = ForwardTimes.round

    def time(times: ForwardTimes, size: int) -> float:
        compute(times, size)
        assert not model.padding
        timed.append((times.context, size))
        return 1e-3 * (size if size < 8 else 1.0 + 0.1 * size)

    monkeypatch.setattr(ForwardTimes, "round", time)
    return timed


def test_rounds_are_timed_as_they_are_and_then_padded_where_that_is_faster(
    model: TargetModel, edge_at_eight: list[tuple[int, int]], tmp_path: Path
) -> None:
    curve = measure(model, budget_s=3.0, contexts=(64, 512))
    assert {size for context, size in edge_at_eight if context == 512} >= {1, 8, 17}
    assert (512, 5) not in edge_at_eight
    assert model.padding == {3: 4}
    store, backend = CostStore(tmp_path), find_backend()
    store.save(cost_key(model, backend), replace(curve, load=99.0))
    assert not find_cost_curve(model, backend, store=store).is_padded
    assert model.padding == {3: 4}
    store.save(cost_key(model, backend), curve)
    assert find_cost_curve(model, backend, store=store) == curve.padded
    assert model.padding == dict.fromkeys(range(2, 8), 8)


def test_rounds_are_not_padded_if_a_rejection_takes_more_than_a_counter(tmp_path: Path) -> None:
    windowed = make_model("gemma3_text")
    rounds = ((1, 0.010), (2, 0.020), (8, 0.012))
    curve = CostCurve((CostLevel(128, 0.009, rounds),))
    store, backend = CostStore(tmp_path), find_backend()
    store.save(cost_key(windowed, backend), curve)
    assert find_cost_curve(windowed, backend, store=store) == curve
    assert not windowed.padding


def test_a_context_that_the_model_does_not_have_is_left_out(model: TargetModel) -> None:
    curve = measure(model, budget_s=0.2, contexts=(64, 4096))
    assert [level.context for level in curve.levels] == [64]


def test_a_curve_is_measured_once_and_kept(
    model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def fake(of: TargetModel, **_: object) -> CostCurve:
        measured.append(of)
        return FLAT

    monkeypatch.setattr(calibration, "measure_cost_curve", fake)
    store = CostStore(tmp_path)
    backend = find_backend()
    monkeypatch.setattr(calibration, "expected_curve", lambda *_: LINEAR)
    assert find_cost_curve(model, backend, store=store) == LINEAR
    kept = measure_and_store(model, backend, store=store)
    assert kept.levels == FLAT.levels
    assert kept.load == (0.0 if backend.device == "cpu" else None)
    assert kept.measured_at is not None
    assert find_cost_curve(model, backend, store=store) == kept
    assert len(measured) == 1
    store.path(cost_key(model, backend)).write_text("damaged")
    assert find_cost_curve(model, backend, store=store) == LINEAR


def test_what_was_measured_counts_even_if_it_cannot_be_kept(
    model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curve of last year is there, and the disk is full."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store, backend = CostStore(tmp_path), find_backend()
    store.save(cost_key(model, backend), replace(LINEAR, measured_at=0.0))
    monkeypatch.setattr(cost_store, "write_atomically", full)
    monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: FLAT)
    kept = measure_and_store(model, backend, store=store)
    assert (kept.levels, kept.doubt) == (FLAT.levels, MEASURED)


def test_what_a_busy_machine_measures_is_refused(
    model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = CostCurve((CostLevel(128, 0.04, ((1, 0.043), (33, 0.001))),))
    monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: falling)
    store = CostStore(tmp_path)
    with pytest.raises(BackendError, match="busy"):
        measure_and_store(model, find_backend(), store=store)
    assert not [*tmp_path.iterdir()]


def test_what_a_busy_machine_measures_does_not_replace_what_an_idle_one_did(
    model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = replace(find_backend(), device="cpu")  # elsewhere, other work does not count
    key, idle = cost_key(model, backend), replace(LINEAR, measured_at=time(), load=0.0)
    for stored, load, kept in ((idle, 3.0, LINEAR), (idle, 0.0, FLAT), (None, 3.0, FLAT)):
        store = CostStore(tmp_path / str(len([*tmp_path.iterdir()])))
        if stored is not None:
            store.save(key, stored)
        monkeypatch.setattr(calibration, "other_load", lambda load=load: load)
        monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: FLAT)
        assert measure_and_store(model, backend, store=store).levels == FLAT.levels
        found = store.load(key)
        assert found is not None
        assert found.levels == kept.levels


class TestEngine:
    def engine(self, folder: Path, asked: list[TargetModel], costs: CostCurve = FLAT) -> Engine:
        def calibrate(model: TargetModel, _: object) -> CostCurve:
            asked.append(model)
            return costs

        return akunu_py.load(str(folder), calibrate=calibrate)

    def test_doubtful_costs_are_measured_while_no_request_waits(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured: list[object] = []

        def fake(*_: object, progress: Callable[[float, float], None], **__: object) -> CostCurve:
            progress(0.0, 1.0)
            measured.append(progress)
            return FLAT

        monkeypatch.setattr(calibration, "measure_and_store", fake)
        alike = replace(FLAT, row_class=RowClass(1, ((0, 5),)))
        monkeypatch.setattr(calibration, "find_row_class", lambda *_, **__: alike)
        engine = self.engine(tiny_model_dir, [], replace(LINEAR, doubt=DOUBTFUL))
        engine.measure_costs(lambda: False)
        assert measured == []  # no request wanted them
        answer = engine.generate("abc", Options(8))
        assert measured == []
        assert answer.stats.setup_s > 0
        engine.measure_costs(lambda: True)
        assert engine.costs.measured is None
        engine.measure_costs(lambda: False)
        engine.measure_costs(lambda: False)
        assert len(measured) == 1
        assert engine.costs.measured == alike

    def test_dear_classes_are_looked_for_once_an_exact_answer_was_asked_for(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prices: list[float] = []

        def fake(*_: object, curve: CostCurve, most_price: float, **__: object) -> CostCurve:
            prices.append(most_price)
            return replace(curve)

        monkeypatch.setattr(calibration, "find_row_class", fake)
        engine = self.engine(tiny_model_dir, [], LINEAR)
        for exact in (None, None, True, True):
            engine.generate("abc", Options(4, exact=exact))
            engine.measure_costs(lambda: False)
        assert prices == [FREE, math.inf]

    def test_costs_that_were_not_to_be_trusted_are_not_measured_again_at_once(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        doubtful, measured = replace(FLAT, doubt=DOUBTFUL), []

        def fake(*_: object, **__: object) -> CostCurve:
            measured.append(doubtful)
            return doubtful

        monkeypatch.setattr(calibration, "measure_and_store", fake)
        engine = self.engine(tiny_model_dir, [], doubtful)
        engine.generate("abc", Options(8))
        for _ in range(3):
            engine.measure_costs(lambda: False)
        assert len(measured) == 1

    def test_costs_are_asked_for_once_and_not_where_an_answer_need_not_be_exact(
        self, tiny_model_dir: Path
    ) -> None:
        asked: list[TargetModel] = []
        engine = self.engine(tiny_model_dir, asked)
        engine.generate("abc", Options(8, drafter="none", exact=False))
        engine.generate("abc", Options(8, num_draft_tokens=4, exact=False))
        engine.generate("abc", Options(8, num_draft_tokens=0, exact=False))
        engine.generate("abc", Options(0, exact=False))
        assert asked == []
        engine.generate("abc", Options(8))
        engine.generate("abc", Options(8))
        assert asked == [engine.model]

    def test_measuring_leaves_the_cache_of_requests_alone(self, tiny_model_dir: Path) -> None:
        engine = akunu_py.load(
            str(tiny_model_dir), calibrate=lambda model, _: measure(model, budget_s=0.0)
        )
        engine.generate("abcdefgh", Options(4, drafter="none"))
        begun = perf_counter()
        answer = engine.generate("abcdefgh", Options(4))
        assert answer.stats.cached_tokens > 0
        assert answer.stats.prefill_s + answer.stats.decode_s <= perf_counter() - begun


@pytest.mark.parametrize("start", [129, 133, 1024, 1026])
def test_a_cache_may_begin_to_be_quantized_at_any_length(tmp_path: Path, start: int) -> None:
    folder = write_tiny_model(tmp_path / "long", max_position_embeddings=4096)
    options = ModelOptions(str(folder), kv_bits=8, quantized_kv_start=start)
    long = load_target(options, find_backend())
    curve = measure(long, budget_s=0.2)
    assert curve.levels[0].context == (start if start < 134 else 128)


def test_no_error_of_a_measurement_ends_the_engine(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> CostCurve:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(calibration, "measure_cost_curve", broken)
    doubted = replace(LINEAR, doubt=DOUBTFUL)
    engine = akunu_py.load(str(tiny_model_dir), calibrate=lambda *_: doubted)
    engine.generate("one two", Options(max_tokens=4))
    assert engine.costs.wants_curve
    engine.measure_costs(lambda: False)
    assert engine.costs.wants_curve
