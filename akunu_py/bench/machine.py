"""What a measurement was made on, as far as it changes the figures."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from akunu_py.backend import Backend


def describe_machine(backend: Backend) -> dict[str, Any]:
    """The machine and the libraries, for the head of every recorded result."""
    return {
        "device": backend.device,
        "chip": _cpu_name() if backend.device == "cpu" else backend.chip,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "blas": backend.blas,
        "blas_threads": backend.threads if backend.blas else None,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
    }


def machine_line(machine: dict[str, Any]) -> str:
    """The same in a line."""
    blas = f", {machine['blas']} ({machine['blas_threads']} threads)" if machine["blas"] else ""
    return (
        f"{machine['chip']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['device']}{blas}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, Python {machine['python']}"
    )


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
