"""A simulated Metal: the package thinks that it runs there, and MLX computes on the CPU.

So the branches for Metal run, and what they compute is right. What it costs there, no test knows.
"""

import os
import sys
from functools import cache
from typing import Any, Final

import pytest

from akunu_py.machine import backend

IS_SIMULATED: Final = os.environ.get("AKUNU_TESTS") == "metal"
"""Whether this whole run of the tests simulates it."""

CHIP: Final[dict[str, Any]] = {
    "device_name": "Apple M4 Pro",
    "memory_size": 48 << 30,
    "max_recommended_working_set_size": 36 << 30,
}


def simulate_metal(patch: pytest.MonkeyPatch) -> None:
    """Until `patch` is undone."""
    backend.find_backend()  # it loads a BLAS before MLX
    import mlx.core as mx  # noqa: PLC0415

    cpu = mx.default_device()

    def device() -> mx.Device:
        # mlx-lm has kernels for a GPU, which must not run.
        caller = sys._getframe(1).f_globals["__name__"]
        return mx.Device(mx.gpu) if caller.startswith("akunu_py") else cpu

    found = backend.Backend("metal", CHIP["device_name"])
    patch.setattr(mx, "device_info", lambda *_: CHIP)
    patch.setattr(mx, "default_device", device)
    patch.setattr(mx.metal, "is_available", lambda: True)
    patch.setattr(mx, "set_wired_limit", lambda _: None)
    patch.setattr(backend, "_found", cache(backend._found.__wrapped__))
    assert backend.find_backend() == found
