"""How many threads the BLAS uses: the user's environment decides, if it says so."""

from dataclasses import replace

import pytest

from akunu_py.machine.blas import load_blas, thread_choices


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
