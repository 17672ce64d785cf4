"""Timing in turns: what is compared runs warmed up, and in an order that changes every time."""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from time import perf_counter

from akunu_py.bench.measurement import Spread
from akunu_py.errors import InvalidRequestError


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
