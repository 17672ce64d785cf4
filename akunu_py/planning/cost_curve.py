"""CostCurve: the seconds that a forward pass of the loaded model takes on this machine.

It interpolates measured points to any number of tokens at any context. A pipelined single step and
a synchronised round have different costs, because a loop that waits for each result leaves the
device idle while it builds the next pass. It knows no model and no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from akunu_py.planning.row_class import RowClass, whole

_MIN_S: Final = 1e-7
_MAX_S: Final = 3600.0
_MAX_TOKENS: Final = 4096
_MAX_CONTEXT: Final = 1 << 40
_PLAUSIBLE_FACTOR: Final = 5.0
"""A plausible round costs at most this many times as much per token as a round over one token."""
_PLAUSIBLE_FALL: Final = 0.5
"""The fraction by which a round over more tokens may be faster than one over a single token:
kernels for one row can be slower, but a larger difference is more likely due to other work."""

CLEARLY_FASTER: Final = 0.95
"""An alternative must take less than this fraction of the usual time; otherwise it may be noise."""

MEASURED: Final = 0.01
"""The doubt of costs that were measured on this machine while it was idle."""

DOUBTFUL: Final = 0.5
"""The doubt of all other costs: at 17 tokens, two standard deviations are a factor of 8."""


@dataclass(frozen=True)
class CostLevel:
    """The measurements with `context` tokens in the cache: `decode_s` of a pipelined single step;
    `verify_s`, pairs of tokens and seconds of a synchronised round, ascending from 1 token.
    """

    context: int
    decode_s: float
    verify_s: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.verify_s]
        if sizes[:1] != [1] or any(a >= b for a, b in pairwise(sizes)):
            raise ValueError(f"the sizes of rounds must ascend from 1 token, but are {sizes}")
        if sizes[-1] > _MAX_TOKENS or not 0 <= self.context <= _MAX_CONTEXT:
            raise ValueError(f"no forward pass takes {sizes[-1]} tokens at context {self.context}")
        seconds = [self.decode_s, *(cost for _, cost in self.verify_s)]
        if not all(_MIN_S < cost < _MAX_S for cost in seconds):
            raise ValueError(f"no forward pass takes such times: {seconds}")


@dataclass(frozen=True)
class CostCurve:
    """Costs between and beyond the measured points; they never fall with tokens or with context.
    Levels ascend by context; the first has all points, others perhaps fewer.

    `blas_threads` was chosen for the model on a CPU. `doubt` about the ratio of a round's cost to a
    step's is the standard deviation of its logarithm, per root of an octave of rows. `measured_at`
    is in seconds since 1970, `load` processes per core just before. If `is_padded`, rounds cost
    what they are padded to. `row_class`: None if it was not searched for.
    """

    levels: tuple[CostLevel, ...]
    blas_threads: int | None = None
    doubt: float = MEASURED
    measured_at: float | None = None
    load: float | None = None
    is_padded: bool = False
    row_class: RowClass | None = None

    def __post_init__(self) -> None:
        contexts = [level.context for level in self.levels]
        if not contexts or contexts != sorted(set(contexts)):
            raise ValueError(f"the contexts must ascend, but are {contexts}")

    @property
    def longest(self) -> int:
        """The most tokens of a measured round."""
        return self.levels[0].verify_s[-1][0]

    @cached_property
    def padding(self) -> dict[int, int]:
        """How many tokens to pad rounds to, by their tokens, where that is clearly faster at the
        shortest context: kernels for many rows can be faster than those for few."""
        measured = self.levels[0].verify_s
        found = {}
        for tokens in range(2, self.longest):
            larger = [(size, cost) for size, cost in measured if size >= tokens]
            enough = min(cost for _, cost in larger) / CLEARLY_FASTER
            size, cost = next(point for point in larger if point[1] <= enough)
            if cost < CLEARLY_FASTER * _between(measured, tokens):
                found[tokens] = size
        return found

    @property
    def padded(self) -> CostCurve:
        return replace(self, is_padded=True) if self.padding else self

    @property
    def unpadded(self) -> CostCurve:
        return replace(self, is_padded=False)

    def with_steps_of(self, rows: int) -> CostCurve:
        """The same curve, with steps and shorter rounds padded to this many rows."""
        if rows == 1:
            return self
        levels = []
        for level in self.levels:
            padded_s = self.verify_s(rows, level.context)
            points = [(1, padded_s), *((size, s) for size, s in level.verify_s if size > rows)]
            if points[1:2] and points[1][0] > rows + 1:
                points.insert(1, (rows, padded_s))
            step_s = level.decode_s + max(0.0, padded_s - level.verify_s[0][1])
            levels.append(replace(level, decode_s=step_s, verify_s=tuple(points)))
        return replace(self, levels=tuple(levels))

    def decode_s(self, context: int) -> float:
        """Seconds of a single step in a pipelined loop, at most those of a round over one token:
        pipelining never costs time, so a slower step was measured at a bad moment."""
        return _along(self._contexts, self._steps, context)

    def verify_s(self, tokens: int, context: int) -> float:
        """Seconds of a synchronised round over `tokens` positions."""
        base = self._base(tokens)
        at_levels = [base + _between(added, tokens) for added in self._added]
        return _along(self._contexts, [base, *at_levels], context)

    def verify_table(self, context: int, tokens: int) -> list[float]:
        """Seconds of rounds over 1, 2 ... `tokens` positions."""
        return [self.verify_s(size, context) for size in range(1, tokens + 1)]

    def as_json(self) -> dict[str, Any]:
        """The measured points, in the form that `from_json` reads."""
        known = {
            "padded": self.is_padded or None,
            "blas_threads": self.blas_threads,
            "measured_at": self.measured_at,
            "load": self.load,
            "row_class": self.row_class and self.row_class.as_json(),
        }
        return {name: value for name, value in known.items() if value is not None} | {
            "levels": [
                {
                    "context": level.context,
                    "step_s": level.decode_s,
                    "rounds_s": {str(size): cost for size, cost in level.verify_s},
                }
                for level in self.levels
            ]
        }

    @classmethod
    def from_json(cls, data: Any) -> CostCurve:
        """Reads the output of `as_json`; raises a ValueError that says what is wrong."""
        try:
            levels = tuple(
                CostLevel(
                    whole(level["context"]),
                    _real(level["step_s"]),
                    tuple((int(size), _real(cost)) for size, cost in level["rounds_s"].items()),
                )
                for level in data["levels"]
            )
            curve = cls(
                levels,
                None if (threads := data.get("blas_threads")) is None else whole(threads),
                measured_at=None if (at := data.get("measured_at")) is None else _real(at),
                load=None if (load := data.get("load")) is None else _real(load),
                is_padded=data.get("padded") is True,
                row_class=None
                if (row := data.get("row_class")) is None
                else RowClass.from_json(row),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a cost curve: {error!r}") from error
        curve.check_plausible()
        return curve

    def check_plausible(self) -> None:
        """Raises a ValueError if other work on the machine must have distorted the costs: if a
        round over several tokens is clearly faster than one over one token, or slower than single
        steps."""
        for level in self.levels:
            one, step = level.verify_s[0][1], level.decode_s
            if not one / (2 * _PLAUSIBLE_FACTOR) <= step <= _PLAUSIBLE_FACTOR * one:
                raise ValueError(f"a step takes {_ms(step)}, but a round of one token {_ms(one)}")
            for size, cost in level.verify_s:
                if not (1.0 - _PLAUSIBLE_FALL) * one <= cost <= _PLAUSIBLE_FACTOR * size * one:
                    raise ValueError(f"{size} tokens take {_ms(cost)}, but one takes {_ms(one)}")

    @cached_property
    def _contexts(self) -> list[int]:
        return [level.context for level in self.levels]

    @cached_property
    def _steps(self) -> list[float]:
        single = [self.verify_s(1, level.context) for level in self.levels]
        steps = [min(level.decode_s, *one) for level, *one in zip(self.levels, single, strict=True)]
        return [max(steps[: index + 1]) for index in range(len(steps))]

    @cached_property
    def _points(self) -> list[tuple[int, float]]:
        measured = self.levels[0].verify_s
        if not self.is_padded:
            return never_falling(measured)
        # No round counts as faster than one over a single token, which is not padded.
        one, sizes = measured[0][1], range(1, self.longest + 1)
        sizes_of = ((tokens, self.padding.get(tokens, tokens)) for tokens in sizes)
        return never_falling(
            [(tokens, max(one, _between(measured, size))) for tokens, size in sizes_of]
        )

    @cached_property
    def _added(self) -> list[list[tuple[int, float]]]:
        """For each level after the first, the seconds that its context adds to a round, by size; at
        no size less than at the previous level."""
        added: list[list[tuple[int, float]]] = []
        before = [(1, 0.0)]
        for level in self.levels[1:]:
            own = [(size, cost - self._base(size)) for size, cost in level.verify_s]
            sizes = sorted({size for size, _ in (*before, *own)})
            points = [(size, max(_between(own, size), _between(before, size))) for size in sizes]
            before = never_falling(points)
            added.append(before)
        return added

    def _base(self, tokens: int) -> float:
        """The cost at the shortest context; then the slope of the upper half."""
        last, seconds = self._points[-1]
        if tokens <= last:
            return _between(self._points, tokens)
        half = max(1, last // 2)
        rise = (seconds - _between(self._points, half)) / max(1, last - half)
        return seconds + rise * (tokens - last)


def never_falling(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The nearest points that never fall, by isotonic regression (pool adjacent violators): falling
    neighbours are replaced by their mean."""
    pools: list[tuple[float, int]] = []
    for _, value in points:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            below, many = pools.pop()
            mean = (mean * count + below * many) / (count + many)
            count += many
        pools.append((mean, count))
    values = [mean for mean, count in pools for _ in range(count)]
    return [(size, value) for (size, _), value in zip(points, values, strict=True)]


def _between(points: Sequence[tuple[int, float]], size: int) -> float:
    """Linear interpolation; constant beyond the last point."""
    index = bisect_left(points, (size, -math.inf))
    if index == len(points):
        return points[-1][1]
    above, high = points[index]
    if above == size or index == 0:
        return high
    below, low = points[index - 1]
    return low + (high - low) * (size - below) / (above - below)


def _along(contexts: Sequence[int], values: Sequence[float], context: int) -> float:
    """Linear interpolation in the context, constant before the first level. Beyond the last, it
    continues the line from the first to the last, because attention adds a fixed time per token."""
    if len(contexts) == 1 or context <= contexts[-1]:
        return _between(list(zip(contexts, values, strict=True)), context)
    rise = (values[-1] - values[0]) / (contexts[-1] - contexts[0])
    return values[-1] + max(0.0, rise) * (context - contexts[-1])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def _real(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
