"""The memory of the machine and of its device: free memory, freed memory that MLX keeps, and wired
weights.

Free memory respects the limits of this process: those of `ulimit` and of control groups (version 1
or 2), which containers use.
"""

import ctypes
import os
import re
import resource
import sys
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

MORE_MEMORY: Final = (
    "quit other programs (on a Mac, `sudo sysctl iogpu.wired_limit_mb=N` gives the GPU more)"
)
"""How a user gets more memory, as part of a sentence."""
_MOST_FREED_BYTES: Final = 2 << 30
_MALLOC_BOUNDS: Final = {-8: 2, -3: 4 << 20}
"""glibc's `M_ARENA_MAX` and `M_MMAP_THRESHOLD`, in bytes (numbers from its malloc.h). By default,
there are eight arenas per core, and pieces of up to 32 MiB are kept in them once such were freed.
Larger pieces are mapped one by one, and return to the system when they are freed."""
_NO_PRESSURE: Final = 1
"""The level at which macOS neither warns (2) nor ends processes (4)."""
_LEAST_FREE_SHARE: Final = 1 / 32
"""The share of the installed memory, on Linux: the kernel reclaims its own caches long before."""
_CACHE_MEMORY_SHARE: Final = 0.25
"""The share of the free memory; the rest of the process needs memory too."""

_LIMITS: Final = ((resource.RLIMIT_AS, 0, 256 << 20), (resource.RLIMIT_DATA, 5, 32 << 20))
"""The limits of address space and of data; the field of `statm` with the amount in use; and what
the first forward pass takes besides: MKL maps 220 MB of libraries, and ends the process if it
cannot.
"""


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Free bytes of memory for weights and caches; `root` is where `/proc` and `/sys` are."""
    with suppress(OSError):
        if free := re.search(r"MemAvailable:\s+(\d+)", (root / "proc/meminfo").read_text()):
            return max(0, min([int(free[1]) * 1024, *_below_limits(root), *_in_groups(root)]))
    return installed_bytes() // 2  # this system does not report it


def installed_bytes() -> int:
    """The memory of this machine; 0 if that is unknown."""
    with suppress(ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


def _below_limits(root: Path) -> Iterator[int]:
    pages = (root / "proc/self/statm").read_text().split()
    for limit, field, reserved in _LIMITS:
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            yield most - int(pages[field]) * os.sysconf("SC_PAGE_SIZE") - reserved


def _in_groups(root: Path) -> Iterator[int]:
    """What the control group of this process and those above it have left; cached files count as
    free."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers:
            continue  # of version 1
        group = root / "sys/fs/cgroup" / path.lstrip("/")
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such group, or one without a limit
                files = (folder / "memory.stat").read_text()
                cached = re.findall(r"(?m)^(?:in)?active_file (\d+)$", files)
                left = int((folder / "memory.max").read_text())
                left -= int((folder / "memory.current").read_text())
                yield left + sum(map(int, cached))


def memory_is_short(root: Path = Path("/")) -> bool:
    """Whether the machine would soon have to swap: macOS warns, or `free_memory_bytes` is low."""
    if sys.platform == "darwin":
        level, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
        name = b"kern.memorystatus_vm_pressure_level"
        failed = ctypes.CDLL(None).sysctlbyname(
            name, ctypes.byref(level), ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        return not failed and level.value > _NO_PRESSURE
    return free_memory_bytes(root) < _LEAST_FREE_SHARE * installed_bytes()


def bound_freed_memory() -> None:
    """Limits the freed memory that MLX keeps for later; by default, MLX may keep all of it."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    mx.set_cache_limit(_MOST_FREED_BYTES)


def peak_memory_bytes() -> int:
    """The most bytes that MLX's arrays have taken so far."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    return mx.get_peak_memory()


def free_device_bytes() -> int:
    """Bytes that arrays may still take: on Metal, the recommended total minus what they already
    take; elsewhere, free memory plus what MLX has freed but kept."""
    import mlx.core as mx  # noqa: PLC0415

    if (recommended := _recommended_bytes()) is not None:
        return max(0, recommended - mx.get_active_memory())
    free = mx.device_info().get("free_memory")  # of a device that does not share the machine's
    return mx.get_cache_memory() + (free if isinstance(free, int) else free_memory_bytes())


def spare_cache_bytes() -> int:
    """Bytes that caches may take in addition to the loaded weights."""
    return int(_CACHE_MEMORY_SHARE * free_device_bytes())


def wire_weights(model: object, nbytes: int) -> None:
    """Lets Metal wire the weights of a large model for as long as the model exists.

    Otherwise macOS may page them out between two forward passes. Call it while there are no caches:
    MLX wires what it has until the limit is reached, and wiring caches that come and go has made
    macOS panic (mlx issue 3186). A model that takes half of the memory or less is not in danger.
    """
    if (recommended := _recommended_bytes()) is None:
        return
    if 2 * nbytes > recommended:
        _wired[id(model)] = nbytes
        _set_wired_limit(recommended)
        weakref.finalize(model, _unwire, id(model), recommended).atexit = False


def wired_bytes() -> int:
    """Bytes of the weights that are currently wired."""
    return sum(_wired.values())


@contextmanager
def unwired() -> Generator[None, None, None]:
    """A context in which macOS may page out wired weights; for a comparison. There must be no
    caches at its end, because they would be wired too."""
    _set_wired_limit(0)
    try:
        yield
    finally:
        _set_wired_limit(_recommended_bytes() or 0)


_wired: Final[dict[int, int]] = {}
"""Bytes of wired weights by the id of their model; any thread may remove an entry."""


def _unwire(model: int, recommended: int) -> None:
    _wired.pop(model, None)
    _set_wired_limit(recommended)


def _set_wired_limit(most: int) -> None:
    import mlx.core as mx  # noqa: PLC0415

    with suppress(RuntimeError):  # from a computation whose result nobody read
        mx.synchronize()  # it must not change while a forward pass is in flight
    mx.set_wired_limit(min(sum(_wired.values()), most))


def _recommended_bytes() -> int | None:
    import mlx.core as mx  # noqa: PLC0415

    found = mx.device_info().get("max_recommended_working_set_size")
    return found if isinstance(found, int) else None


def bound_kept_memory() -> None:
    """Has glibc keep less of what a request took once it is freed."""
    with suppress(OSError, AttributeError):
        for parameter, value in _MALLOC_BOUNDS.items():
            ctypes.CDLL(None).mallopt(parameter, value)


def give_back_memory() -> None:
    """Returns freed memory to the system, which MLX and the C library would keep for later."""
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        mx.clear_cache()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc's
