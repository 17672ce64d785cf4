"""The number of threads that a BLAS uses: the environment, the choice, and the change."""

from dataclasses import replace
from pathlib import Path

import pytest

from akunu_py.calibration import measure as calibration
from akunu_py.calibration.cost_store import CostStore
from akunu_py.calibration.measure import choose_threads, cost_key, find_cost_curve
from akunu_py.machine.backend import find_backend
from akunu_py.machine.blas import Blas, load_blas, thread_choices
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.cost_curve import CostCurve
from tests.planning.curves import FLAT


class FakeBlas(Blas):
    """Notes the numbers of threads that it was told to use."""

    used: list[int]

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__("mkl", next(iter(seconds)), tuple(seconds))
        object.__setattr__(self, "used", [])

    def use_threads(self, threads: int) -> None:
        self.used.append(threads)


class TestThreads:
    @pytest.mark.parametrize(
        ("seconds", "chosen"),
        [
            ({1: 0.100, 2: 0.078}, 2),
            ({1: 0.004, 2: 0.006}, 1),
            ({1: 0.100, 2: 0.099}, 1),  # not clearly faster: the usual number stays
            ({7: 0.100, 8: 0.110, 4: 0.050, 1: 0.300}, 4),
        ],
    )
    def test_the_fastest_number_is_used_from_then_on(
        self, seconds: dict[int, float], chosen: int
    ) -> None:
        blas = FakeBlas(seconds)
        measure = lambda: seconds[blas.used[-1]]  # noqa: E731
        assert choose_threads(blas, measure, 0.0, {}) == chosen
        assert blas.used[-1] == chosen

    def test_nothing_is_measured_without_a_choice(self) -> None:
        assert choose_threads(FakeBlas({1: 0.1}), lambda: 1 / 0, 0.0, {}) is None
        assert choose_threads(None, lambda: 1 / 0, 0.0, {}) is None

    def test_the_choice_is_kept_with_the_costs(
        self, model: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blas = FakeBlas({1: 0.1, 2: 0.05})
        monkeypatch.setattr(calibration, "load_blas", lambda: blas)
        store, backend = CostStore(tmp_path), find_backend()
        store.save(cost_key(model, backend), CostCurve(FLAT.levels, blas_threads=2))
        assert find_cost_curve(model, backend, store=store).blas_threads == 2
        assert blas.used == [2]


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({"MKL_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"MKL_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 5),
        ({"MKL_NUM_THREADS": "0", "OMP_NUM_THREADS": "many"}, None),
        ({}, None),
    ],
)
def test_the_environment_decides(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], threads: int | None
) -> None:
    cores = 7
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert thread_choices("mkl") == ((threads,) if threads else (6, 7, 3, 1))


def test_a_single_core_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert thread_choices("mkl") == (1,)


def test_the_number_of_threads_changes_while_the_program_runs() -> None:
    loaded = load_blas()
    if loaded is None or loaded.name == "reference":
        pytest.skip("its threads cannot be changed")
    blas = replace(loaded, choices=(1, 2))
    try:
        for threads in blas.choices:
            blas.use_threads(threads)
            assert blas.current_threads == threads
        blas.use_threads(3)
        assert blas.current_threads == threads, "only a choice is taken"
    finally:
        replace(blas, choices=(blas.threads,)).use_threads(blas.threads)
