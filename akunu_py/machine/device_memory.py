"""The memory of the device: what is free, what is freed and kept, and weights that are wired."""

import ctypes
import sys
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from akunu_py.machine.memory import free_memory_bytes

MORE_MEMORY: Final = (
    "quit other programs (a Mac's GPU takes more after `sudo sysctl iogpu.wired_limit_mb=N`)"
)
"""How a user gets more memory, as a part of a sentence."""
_MOST_FREED_BYTES: Final = 2 << 30
_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_CACHE_MEMORY_SHARE: Final = 0.25
"""Of the free memory; the rest of the process needs memory too."""


def bound_freed_memory() -> None:
    """Limits the freed memory that MLX keeps for later; its default is all that it may use."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    mx.set_cache_limit(_MOST_FREED_BYTES)


def peak_memory_bytes() -> int:
    """The most bytes that MLX's arrays have taken so far."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    return mx.get_peak_memory()


def free_device_bytes() -> int:
    """Bytes that arrays may still take: on Metal, what it recommends for everything less what they
    take already; elsewhere what is free, and what MLX has freed and kept."""
    import mlx.core as mx  # noqa: PLC0415

    if (recommended := _recommended_bytes()) is not None:
        return max(0, recommended - mx.get_active_memory())
    free = mx.device_info().get("free_memory")  # of a device that does not share the machine's
    return mx.get_cache_memory() + (free if isinstance(free, int) else free_memory_bytes())


def spare_cache_bytes() -> int:
    """Bytes that caches may take beside the loaded weights."""
    return int(_CACHE_MEMORY_SHARE * free_device_bytes())


def wire_weights(model: object, nbytes: int) -> None:
    """Lets Metal wire the weights of a large model until nobody holds the model any longer.

    Otherwise macOS may page them out between two forwards. Call it while there are no caches: MLX
    wires what it has until the limit is reached, and wiring caches that come and go has made macOS
    panic (mlx issue 3186). A model that takes half of the memory or less is not in danger.
    """
    if (recommended := _recommended_bytes()) is None:
        return
    if 2 * nbytes > recommended:
        _wired[id(model)] = nbytes
        _set_wired_limit(recommended)
        weakref.finalize(model, _unwire, id(model), recommended).atexit = False


def wired_bytes() -> int:
    """Bytes of the weights that are wired now."""
    return sum(_wired.values())


@contextmanager
def unwired() -> Generator[None, None, None]:
    """Lets macOS page out weights that are wired, meanwhile; for a comparison. There must be no
    caches at its end: they would be wired, too."""
    _set_wired_limit(0)
    try:
        yield
    finally:
        _set_wired_limit(_recommended_bytes() or 0)


_wired: Final[dict[int, int]] = {}
"""Bytes of the weights that are wired, by the id of their model; any thread may end one."""


def _unwire(model: int, recommended: int) -> None:
    _wired.pop(model, None)
    _set_wired_limit(recommended)


def _set_wired_limit(most: int) -> None:
    import mlx.core as mx  # noqa: PLC0415

    with suppress(RuntimeError):  # from a computation whose result nobody read
        mx.synchronize()  # it must not change while a forward is in flight
    mx.set_wired_limit(min(sum(_wired.values()), most))


def _recommended_bytes() -> int | None:
    """What Metal recommends to take for everything; None on other devices."""
    import mlx.core as mx  # noqa: PLC0415

    found = mx.device_info().get("max_recommended_working_set_size")
    return found if isinstance(found, int) else None


def share_arenas() -> None:
    """Lets glibc's threads share two arenas; it has eight a core, which keep what they freed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def give_back_memory() -> None:
    """Gives freed memory back to the system; MLX and the C library keep it for later."""
    if "mlx.core" in sys.modules:
        import mlx.core as mx  # noqa: PLC0415

        mx.clear_cache()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # glibc's
