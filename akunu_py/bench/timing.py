"""Fair timing on a noisy machine: contestants in turns, warmed up, medians with their spread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median, quantiles
from time import perf_counter

from akunu_py.errors import InvalidRequestError


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of some measurements; one alone is its own median and quartiles."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4)
        return cls(median(values), low, high)

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
        A list a contestant; entries of the same index were taken next to one another.
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
    """How many times faster than the baseline, from measurements taken next to one another."""
    return Spread.of([base / own for own, base in zip(seconds, baseline, strict=True)])
