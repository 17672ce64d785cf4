"""The BLAS under MLX's CPU backend: found and loaded before MLX can be imported.

MLX's Linux wheel bundles the *reference* BLAS. A real one takes over `cblas_sgemm` if it is loaded,
globally, first: answers come 5 to 10 times faster, and only then does a forward of five tokens cost
less than five forwards. Importing any part of `akunu_py` does this; it takes about a millisecond.
"""

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

BLAS_VARIABLE: Final = "AKUNU_BLAS"
"""Environment variable that picks one: `auto`, `mkl`, `openblas`, or `none` for MLX's own."""


@dataclass(frozen=True)
class Blas:
    """The BLAS that MLX will compute with on a Linux CPU.

    Attributes:
        name: `mkl`, `openblas` or `reference`.
        threads: how many threads it may use.
    """

    name: str
    threads: int


@cache
def load_blas() -> Blas | None:
    """Loads the best BLAS there is, once a process; None on systems that bring their own."""
    if sys.platform != "linux":
        return None
    wanted = os.environ.get(BLAS_VARIABLE, "auto")
    too_late = "mlx.core" in sys.modules
    for name, find in (("mkl", _find_mkl), ("openblas", _find_openblas)):
        threads = _threads_for(name)
        if not too_late and wanted in ("auto", name) and _load(find(), threads):
            return Blas(name, threads)
    return Blas("reference", 1)


def _threads_for(name: str) -> int:
    """As many threads as the user's environment asks for, else one for each core but one.

    That one builds the next graph meanwhile. Where the BLAS takes it too, both wait for each
    other: on two cores, a round of five tokens of a small model then takes a quarter longer.
    """
    for variable in (f"{name.upper()}_NUM_THREADS", "OMP_NUM_THREADS"):
        if (wanted := os.environ.get(variable, "")).isdecimal() and int(wanted) > 0:
            return int(wanted)
    return max(1, len(os.sched_getaffinity(0)) - 1)


def _load(path: str | None, threads: int) -> bool:
    if path is None:
        return False
    # Idle OpenMP threads spin for 200 ms by default, and would starve the thread that builds
    # the next graph.
    os.environ.setdefault("KMP_BLOCKTIME", "1")
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _find_mkl() -> str | None:
    """MKL's runtime where pip puts it: in the `lib` folder of the environment or of the user."""
    user_base = os.environ.get("PYTHONUSERBASE", str(Path.home() / ".local"))
    for prefix in (sys.prefix, user_base):
        for library in sorted(Path(prefix, "lib").glob("libmkl_rt.so*"), reverse=True):
            return str(library)
    return None


def _find_openblas() -> str | None:
    from ctypes.util import find_library  # noqa: PLC0415  (slow, and only needed without MKL)

    return find_library("openblas")
