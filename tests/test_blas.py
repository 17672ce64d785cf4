"""How many threads the BLAS uses: the user's environment decides, if it says so."""

import pytest

from akunu_py.blas import _threads_for


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
    assert _threads_for("mkl") == (threads or cores - 1)


def test_a_single_core_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert _threads_for("mkl") == 1
