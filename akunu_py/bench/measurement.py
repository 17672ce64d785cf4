"""What all reports share: descriptions of the machine, medians with quartiles, tables, files."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from akunu_py.machine.backend import Backend
from akunu_py.machine.device_memory import installed_bytes
from akunu_py.package import write_atomically

if TYPE_CHECKING:
    from akunu_py.engine import Engine

Progress = Callable[[int, int], None]
"""Called with the work done and the work in total, in requests."""

_MIN_FOR_QUARTILES: Final = 4


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The median and quartiles of some measurements; of fewer than 4, their whole range."""
        if len(values) < _MIN_FOR_QUARTILES:
            return cls(median(values), min(values), max(values))
        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median(values), low, high)

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"


def describe_machine(backend: Backend) -> dict[str, Any]:
    """The machine and the libraries, for the head of every record."""
    macos = platform.mac_ver()[0]
    system = f"macOS {macos}" if macos else platform.system()
    return {
        "device": backend.device,
        "chip": backend.chip,
        "cores": os.cpu_count(),
        "memory_gib": round(installed_bytes() / 2**30),
        "system": f"{system} {platform.machine()}",
        "blas": backend.blas,
        "blas_threads": backend.current_threads if backend.blas else None,
        "python": platform.python_version(),
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
    }


def describe_model(engine: Engine) -> dict[str, Any]:
    """The facts about a model that change the figures."""
    model = engine.model
    facts: dict[str, Any] = {
        "name": model.full_name,
        "layout": model.layout,
        "kv_cache": model.kv_cache_form,
        "parameter_bytes": model.parameter_bytes,
        "context_length": model.context_length,
        "vocabulary_size": model.vocabulary_size,
        "after_rejection": str(model.after_rejection),
        "head": None if model.head is None else model.head.describe,
        "names_head": model.names_head,
    }
    if model.ranks is not None:
        facts |= {"ranks": model.ranks, "broadcast_s": model.broadcast_seconds()}
    return facts


def machine_line(machine: dict[str, Any]) -> str:
    """The description in one line."""
    threads = "1 thread" if machine["blas_threads"] == 1 else f"{machine['blas_threads']} threads"
    blas = f", {machine['blas']} ({threads})" if machine["blas"] else ""
    return (
        f"{machine['chip']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, {machine['device']}{blas}, "
        f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, Python {machine['python']}"
    )


def heading(machine: dict[str, Any], model: dict[str, Any]) -> str:
    """The model and the machine in one line."""
    return f"{model['name']}, {model['layout']} weights; {machine_line(machine)}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; cells are converted to text."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def write_report(stem: Path, title: str, parts: Iterable[str], found: Any = None) -> str:
    """Writes `stem.md`, and `stem.json` if something is `found`; returns the Markdown."""
    text = "\n\n".join([f"# {title}", *(part.strip() for part in parts)]) + "\n"
    write_atomically(stem.with_name(f"{stem.name}.md"), text)
    if found is not None:
        write_atomically(stem.with_name(f"{stem.name}.json"), json.dumps(found, indent=1) + "\n")
    return text
