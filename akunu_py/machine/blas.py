"""Finds and loads the BLAS for MLX's CPU backend, before MLX is imported.

MLX's Linux wheel contains the slow *reference* BLAS. A faster one replaces its `cblas_sgemm` if it
is loaded globally before MLX: answers are 5 to 10 times faster, and drafts pay. Importing any part
of `akunu_py` loads it, in about a millisecond.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

BLAS_VARIABLE: Final = "AKUNU_BLAS"
"""The environment variable that chooses it: `auto`, `mkl`, `openblas`, or `none` for MLX's own."""

_SET_THREADS: Final = {"mkl": "MKL_Set_Num_Threads", "openblas": "openblas_set_num_threads"}
_GET_THREADS: Final = {"mkl": "MKL_Get_Max_Threads", "openblas": "openblas_get_num_threads"}


@dataclass(frozen=True)
class Blas:
    """The BLAS that MLX will compute with on a Linux CPU: `mkl`, `openblas` or `reference`.

    It starts with `threads`, and may use any of the `choices`; if the user's environment sets the
    number, there is only that one.
    """

    name: str
    threads: int
    choices: tuple[int, ...] = ()

    def use_threads(self, threads: int) -> None:
        if threads in self.choices:
            getattr(ctypes.CDLL(None), _SET_THREADS[self.name])(threads)

    def free_buffers(self) -> None:
        """Frees the memory that MKL keeps for each thread that has computed, even after its end."""
        if self.name == "mkl":
            ctypes.CDLL(None).MKL_Free_Buffers()

    @property
    def current_threads(self) -> int:
        if self.name not in _GET_THREADS:
            return self.threads
        return int(getattr(ctypes.CDLL(None), _GET_THREADS[self.name])())


@cache
def load_blas() -> Blas | None:
    """Loads the best BLAS available, once per process; None on systems with their own BLAS."""
    if sys.platform != "linux":
        return None
    wanted = os.environ.get(BLAS_VARIABLE, "auto")
    too_late = "mlx.core" in sys.modules
    for name, find in (("mkl", _find_mkl), ("openblas", _find_openblas)):
        choices = thread_choices(name)
        if not too_late and wanted in ("auto", name) and _load(find(), choices[0]):
            return Blas(name, choices[0], choices)
    return Blas("reference", 1)


def thread_choices(name: str) -> tuple[int, ...]:
    """Numbers of threads to try, the usual one first; only one if the user's environment sets it.

    The usual number is one less than there are cores, because the last core builds the next graph
    meanwhile, which is faster with a small model.
    """
    for variable in (f"{name.upper()}_NUM_THREADS", "OMP_NUM_THREADS"):
        if (wanted := os.environ.get(variable, "")).isdecimal() and int(wanted) > 0:
            return (int(wanted),)
    cores = len(os.sched_getaffinity(0))
    return tuple(dict.fromkeys(max(1, count) for count in (cores - 1, cores, cores // 2, 1)))


def _load(path: str | None, threads: int) -> bool:
    if path is None:
        return False
    # By default, idle OpenMP threads spin for 200 ms and take time from the thread that builds the
    # next graph.
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))
    try:
        os.getcwd()  # if it was deleted, MKL would end the process
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _find_mkl() -> str | None:
    """The library in the `lib` folder of the environment or of the user, where pip puts it."""
    user_base = os.environ.get("PYTHONUSERBASE", os.path.expanduser("~/.local"))
    for prefix in (sys.prefix, user_base):
        for library in sorted(Path(prefix, "lib").glob("libmkl_rt.so*"), reverse=True):
            return str(library)
    return None


def _find_openblas() -> str | None:
    from ctypes.util import find_library  # noqa: PLC0415  (slow, and only needed without MKL)

    return find_library("openblas")
