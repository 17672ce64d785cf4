"""LiveCosts: what steps and rounds cost here, learnt from those of real requests.

It begins with a `CostCurve` and its doubt, and corrects it by a scale, which follows the machine's
load, and by a ratio for each number of tokens that was observed. Knows no tokens and no models.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

from akunu_py.planning.cost_curve import CostCurve

_NOISE: Final = 0.1**2
"""The variance of the logarithm of one round's time."""

_MEMORY: Final = 16.0
"""A ratio is the mean of about this many times, so that older ones fade."""

_SCALE_DOUBT: Final = 10.0**2
"""How many times as doubtful as a ratio the scale is at first. Published curves do not tell it; the
first time does."""

_SCALE_DRIFT: Final = 0.02**2
"""How far the scale usually moves from one round to the next: with heat and other work."""

_MAX_SURPRISE: Final = 3.0
"""A time that is more standard deviations from what was expected counts only if the last round of
any size, or of its own, was off to the same side, too. Then it counts as this many, and the curve
is doubted, so that the next one counts whole."""

_ANY_ROUND: Final = -1

_PIPELINING: Final = 0.5
"""How far a round over one token is from a pipelined step, in octaves of tokens."""

_SHORT: Final = 2048
_CONTEXT_GRAIN: Final = 128  # divides _SHORT, so a grain lies in one octave
_CONTEXTS_KEPT: Final = 32

_Ratio = tuple[float, float]
"""The logarithm of a true over a given cost, without the scale, and its variance."""


@dataclass
class _Octave:
    """What is known of contexts that differ by less than a factor of two.

    `scale` is the logarithm of what all true costs are over given ones, and its variance; `doubt`
    the variance of a ratio, for an octave of tokens. `surprises` has the error of the last round of
    each number of tokens, and of the last of any, 0 if it was no surprise. `observed` has the
    ratios of the numbers of tokens that were observed (0 is a pipelined step), `sizes` these
    numbers, ascending, and `ratios` those of all numbers, until the next one is observed.
    """

    scale: tuple[float, float]
    doubt: float
    observed: dict[int, _Ratio] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    ratios: list[_Ratio] = field(default_factory=list)
    surprises: dict[int, float] = field(default_factory=dict)


class LiveCosts:
    """The expected time of a single step and of a round, now, and how doubtful they are.

    Between two observed numbers of tokens, the ratio is interpolated along their logarithm; beyond
    them it is that of the nearest. The doubt grows with the distance from them. Each octave of
    contexts learns on its own, and begins as the nearest one. Rounds may have up to `longest`
    tokens.
    """

    def __init__(self, curve: CostCurve, longest: int) -> None:
        self._longest = longest
        self._places = [0.0, *(_PIPELINING + math.log2(rows) for rows in range(1, longest + 1))]
        self.begin(curve)

    def begin(self, curve: CostCurve) -> None:
        self.curve = curve
        self._octaves: dict[int, _Octave] = {}
        self._tables: dict[int, list[float]] = {}

    def decode_s(self, context: int) -> float:
        return self.verify_s(0, context)

    def verify_s(self, tokens: int, context: int) -> float:
        """Seconds of a round over `tokens` positions; with 0, of a pipelined single step."""
        octave = self._octave(context)
        ratio, _ = self._ratio(octave, tokens)
        return self._by_curve(context)[tokens] * math.exp(octave.scale[0] + ratio)

    def verify_table(self, context: int, tokens: int) -> list[float]:
        """Seconds of rounds over 1, 2 ... `tokens` positions, at most `longest`."""
        costs, scale = self._by_curve(context)[1 : tokens + 1], self._octave(context).scale[0]
        ratios = self._ratios(context)[1:]
        return [
            cost * math.exp(scale + ratio) for cost, (ratio, _) in zip(costs, ratios, strict=False)
        ]

    def doubts(self, context: int, than: int) -> list[float]:
        """For a step and rounds over 1, 2 ... `longest` tokens, the standard deviations of the
        logarithms of their costs relative to that of a round over `than` tokens, or of a step if
        it is 0."""
        ratios, doubt = self._ratios(context), self._octave(context).doubt
        (_, known), place = ratios[than], self._places[than]
        # Near numbers of tokens are off alike, whatever was observed.
        return [
            math.sqrt(min(known + variance, doubt * abs(other - place)))
            for (_, variance), other in zip(ratios, self._places, strict=True)
        ]

    def has_observed(self, tokens: int, context: int) -> bool:
        """Whether a round over this many tokens was observed at such a context."""
        return tokens in self._octave(context).observed

    def observe(self, tokens: int, seconds: float, context: int) -> None:
        """Learns from the time of a round, or with 0 tokens from that of a pipelined single step;
        ignores rounds longer than `longest`, and impossible times."""
        if not (0 <= tokens <= self._longest and 0.0 < seconds < math.inf):
            return
        octave = self._octave(context)
        ratio, own = self._ratio(octave, tokens)
        scale, common = octave.scale
        error = math.log(seconds / self._by_curve(context)[tokens]) - scale - ratio
        total = common + own + _NOISE
        limit = _MAX_SURPRISE * math.sqrt(total)
        surprise = error if abs(error) > limit else 0.0
        kinds = (tokens, _ANY_ROUND) if tokens else (tokens,)
        is_expected = any(surprise * octave.surprises.get(kind, 0.0) > 0.0 for kind in kinds)
        octave.surprises.update(dict.fromkeys(kinds, surprise))
        is_faster = tokens and surprise < 0.0  # what else the machine does makes no round faster
        if surprise and not (is_expected or is_faster):
            return
        shown = max(-limit, min(limit, error))
        scale += common / total * shown
        common += _SCALE_DRIFT - common * common / total
        ratio += own / total * shown
        own = max(own - own * own / total, _NOISE / _MEMORY)
        if shown != error:
            added = min(error * error, 1.0)
            common += added
            if tokens:  # a step that is off says nothing of the ratios of rounds
                own += added
                octave.doubt += added
        octave.scale = scale, common
        if tokens not in octave.observed:
            insort(octave.sizes, tokens)
        octave.observed[tokens] = ratio, own
        octave.ratios.clear()

    def _octave(self, context: int) -> _Octave:
        """The first one ends at `_SHORT` tokens, where attention takes little time in any round."""
        number = (context // _SHORT).bit_length()
        if number not in self._octaves:
            nearest = min(self._octaves, key=lambda other: abs(other - number), default=None)
            if nearest is None:
                doubt = self.curve.doubt**2
                self._octaves[number] = _Octave((0.0, _SCALE_DOUBT * doubt), doubt)
            else:
                # As doubtful as after one time: kernels may change with the context.
                known = self._octaves[nearest]
                scale, common = known.scale
                observed = {
                    size: (ratio, max(own, _NOISE)) for size, (ratio, own) in known.observed.items()
                }
                self._octaves[number] = _Octave(
                    (scale, max(common, _NOISE)), known.doubt, observed, known.sizes.copy()
                )
        return self._octaves[number]

    def _ratios(self, context: int) -> list[_Ratio]:
        octave = self._octave(context)
        if not octave.ratios:
            sizes = range(self._longest + 1)
            octave.ratios = [self._ratio(octave, tokens) for tokens in sizes]
        return octave.ratios

    def _ratio(self, octave: _Octave, tokens: int) -> _Ratio:
        observed, sizes, places = octave.observed, octave.sizes, self._places
        if tokens in observed:
            return observed[tokens]
        if not sizes:
            return 0.0, octave.doubt * places[tokens]
        at = bisect_left(sizes, tokens)
        if at in (0, len(sizes)):
            nearest = sizes[max(0, at - 1)]
            ratio, variance = observed[nearest]
            return ratio, variance + octave.doubt * abs(places[tokens] - places[nearest])
        below, above = sizes[at - 1], sizes[at]
        (low, low_variance), (high, high_variance) = observed[below], observed[above]
        gap = places[above] - places[below]
        part = (places[tokens] - places[below]) / gap
        variance = max(low_variance, high_variance) + octave.doubt * gap * part * (1.0 - part)
        return low + part * (high - low), variance

    def _by_curve(self, context: int) -> list[float]:
        """By the curve, uncorrected: seconds of a step, and of rounds over 1, 2 ... tokens."""
        grain = context // _CONTEXT_GRAIN
        if grain not in self._tables:
            if len(self._tables) >= _CONTEXTS_KEPT:
                self._tables.clear()
            middle = grain * _CONTEXT_GRAIN + _CONTEXT_GRAIN // 2
            self._tables[grain] = [
                self.curve.decode_s(middle),
                *self.curve.verify_table(middle, self._longest),
            ]
        return self._tables[grain]
