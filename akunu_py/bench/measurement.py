"""Measurements on a noisy machine: where they were made, in which order, and how sure they are.

Contestants run in turns, warmed up; medians come with their quartiles or a confidence interval.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import perf_counter
from typing import Any, Final

import numpy as np

from akunu_py.backend import Backend
from akunu_py.errors import InvalidRequestError

CONFIDENCE: Final = 0.95
_RESAMPLES: Final = 2000


@dataclass(frozen=True)
class Spread:
    """A median and two bounds around it: the quartiles, or a confidence interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The median and quartiles of some measurements; of one, three times the same value."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4)
        return cls(median(values), low, high)

    @classmethod
    def of_median(cls, values: Sequence[float]) -> Spread:
        """The median and its 95% interval, by percentile bootstrap; repeatable.

        Raises:
            InvalidRequestError: if there are no values.
        """
        if not values:
            raise InvalidRequestError("A median needs 1 measurement or more.")
        sample = np.asarray(values, np.float64)
        draws = np.random.default_rng(0).integers(len(sample), size=(_RESAMPLES, len(sample)))
        medians = np.median(sample[draws], axis=1)
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(medians, [tail, 1 - tail])
        return cls(float(np.median(sample)), float(low), float(high))

    def __format__(self, spec: str) -> str:
        return f"{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})"


def time_in_turns(
    contestants: Mapping[str, Callable[[], object]], *, repeats: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Seconds that each contestant took, run in turns whose order changes every time.

    Args:
        contestants: what to run, by name.
        repeats: how often each is timed.
        warmups: how often each runs before that, untimed.

    Returns:
        A list for each contestant; entries of the same index were measured in the same turn.
    """
    if repeats < 1:
        raise InvalidRequestError(f"A measurement needs 1 repeat or more, not {repeats}.")
    for _ in range(warmups):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = Random(0).shuffle
    for _ in range(repeats):
        order = list(contestants)
        shuffle(order)
        for name in order:
            begun = perf_counter()
            contestants[name]()
            seconds[name].append(perf_counter() - begun)
    return seconds


def paired_ratios(seconds: Sequence[float], baseline: Sequence[float]) -> Spread:
    """How many times as fast as the baseline, from measurements of the same turns."""
    return Spread.of([base / own for own, base in zip(seconds, baseline, strict=True)])


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
    """The description in one line."""
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
