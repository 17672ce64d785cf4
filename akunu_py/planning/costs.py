"""The costs that requests share: what a model's steps and rounds cost on this machine, which
forward passes compute identical rows, and what that means for exact answers.

Costs are looked up when a request first needs them: the caller measures. `LiveCosts` begins with a
`CostCurve` and its doubt, and corrects it by real requests. It knows no tokens and no models.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from akunu_py.options import MAX_PLANNED_TOKENS, Options
from akunu_py.planning.cost_curve import MEASURED, CostCurve
from akunu_py.planning.row_class import BLOCK_ROWS, FREE, RowClass
from akunu_py.planning.theory import MAX_BATCH_ROWS, affordable, price_of_blocks, price_of_class

Vector = NDArray[np.float64]

_NOISE: Final = 0.1
"""How far the time of a round usually is from its cost, as a logarithm."""

_SCALE_DOUBT: Final = 10.0
"""The shared scale of all costs is this much more doubtful than their ratios. Published curves do
not have it; the first time measured here does."""

_SCALE_DRIFT: Final = 0.02
"""How far the scale usually moves from one round to the next, with heat and other work."""

_OCTAVE_DOUBT: Final = 0.1
"""The doubt that doubling the context adds to ratios learnt at another context, per root of an
octave of rows: attention kernels change with both."""

_PIPELINING: Final = 0.5
"""How far a round over one token is from a pipelined step, in octaves of rows."""

_KNOWN: Final = 0.1
"""The cost of a step counts as known if its doubt is less than this."""
_STEPS_AT_ONCE: Final = 16
"""This many single steps correct the costs together, by their median: a correction takes up to 4%
of a small model's step, and such steps are most of the rounds in text that does not repeat."""
_NOISE_OF_MEDIAN: Final = _NOISE * math.sqrt(math.pi / 2 / _STEPS_AT_ONCE)

_CLIP: Final = 3.0
"""A time more than this many standard deviations from the expected one is a surprise. It counts
only if the last round, or the last one of its size, was a surprise in the same direction, and then
as a time exactly this far off."""
_SURPRISE: Final = 0.25
"""This fraction of the square of a surprise becomes doubt, so that the next one counts fully."""
_MAX_SURPRISE: Final = 1.0
_ANY_ROUND: Final = -1

_MOST_DOUBT: Final = 3.0
"""The standard deviation of the logarithm of a ratio never exceeds this, however many surprises
there were."""

_SHORT: Final = 2048
_CONTEXT_GRAIN: Final = 128  # divides _SHORT, so a grain lies in one octave
_CONTEXTS_KEPT: Final = 32


class LiveCosts:
    """The current expected time of a single step and of a round, and how doubtful their ratios are.

    This is a Kalman filter over the logarithms of true over given costs: of a step, and of rounds
    over 1, 2 ... tokens, up to the `longest`. All share a scale, which is unknown at first and
    drifts. From a step to the longest round, the rest is a Brownian motion along the logarithm of
    the rows: a time corrects all longer rounds as much as its own, and shorter ones less the
    shorter they are. There is a filter for each octave of contexts; a new one starts as a copy of
    the nearest.
    """

    def __init__(self, curve: CostCurve, longest: int) -> None:
        self._longest = longest
        rows = np.arange(1, longest + 1)
        place = np.concatenate(([0.0], _PIPELINING + np.log2(rows)))
        self._shape = np.minimum.outer(place, place)
        self.begin(curve)

    def begin(self, curve: CostCurve) -> None:
        """Starts over, with another curve."""
        self.curve = curve
        covariances = curve.doubt**2 * (_SCALE_DOUBT**2 + self._shape)
        self._filters = {
            _octave(level.context): _Corrections(np.zeros(self._longest + 1), covariances.copy())
            for level in curve.levels
        }
        self._tables: dict[int, Vector] = {}
        # The values until the next correction; many rounds read them in between.
        self._costs: dict[int, list[float]] = {}
        self._doubts: dict[tuple[int, int], list[float]] = {}

    def decode_s(self, context: int) -> float:
        """Seconds of a pipelined single step."""
        return self._now(context)[0]

    def verify_s(self, tokens: int, context: int) -> float:
        """Seconds of a round over `tokens` positions; with 0, of a pipelined single step."""
        return self._now(context)[tokens]

    def verify_table(self, context: int, tokens: int) -> list[float]:
        """Seconds of rounds over 1, 2 ... `tokens` positions, at most `longest`."""
        return self._now(context)[1 : tokens + 1]

    def doubts(self, context: int, than: int) -> list[float]:
        """The standard deviations of the logarithms of costs relative to that of a round over
        `than` tokens, or, with 0, of a step: one for a step, and for rounds over 1, 2 ...
        tokens.
        """
        key = _octave(context), than
        if key not in self._doubts:
            covariances = self._filter(context).covariances
            variances = covariances.diagonal() + covariances[than, than] - 2.0 * covariances[than]
            self._doubts[key] = np.sqrt(np.clip(variances, 0.0, _MOST_DOUBT**2)).tolist()
        return self._doubts[key]

    def has_observed(self, tokens: int, context: int) -> bool:
        """Whether a round over this many tokens was observed at a similar context."""
        return tokens in self._filter(context).observed

    def observe(self, tokens: int, seconds: float, context: int) -> None:
        """Learns from the time of a round, or with 0 tokens, of a pipelined single step. Ignores
        rounds longer than `longest`, and impossible times. Once the cost of steps is known, several
        of them are counted together."""
        if not (0 <= tokens <= self._longest and 0.0 < seconds < math.inf):
            return
        known = self._filter(context)
        known.observed.add(tokens)
        found = math.log(seconds) - math.log(self._by_curve(context)[tokens])
        if tokens:
            self._correct(known, tokens, found)
        elif known.covariances[0, 0] > _KNOWN**2:
            known.steps.clear()  # they were measured before the doubt arose
            self._correct(known, 0, found)
        else:
            known.steps.append(found)
            if len(known.steps) == _STEPS_AT_ONCE:
                self._correct(known, 0, median(known.steps), _STEPS_AT_ONCE)
                known.steps.clear()

    def _correct(self, known: _Corrections, index: int, found: float, rounds: int = 1) -> None:
        """Learns from `found`, the logarithm of measured seconds over the curve's: of a round over
        `index` tokens, or with 0, of a step; a median of `rounds` of them."""
        noise = _NOISE if rounds == 1 else _NOISE_OF_MEDIAN
        covariances = known.covariances
        error = found - known.means[index]
        variance = covariances[index, index] + noise**2
        limit = _CLIP * math.sqrt(variance)
        surprise = error if abs(error) > limit else 0.0
        kinds = (index, _ANY_ROUND) if index else (index,)
        is_expected = any(surprise * known.surprises.get(kind, 0.0) > 0.0 for kind in kinds)
        known.surprises.update(dict.fromkeys(kinds, surprise))
        if surprise and not is_expected and rounds == 1:
            return
        self._costs.clear()
        self._doubts.clear()
        gain = covariances[index] / variance
        known.means += gain * max(-limit, min(limit, error))
        covariances -= np.outer(gain, covariances[index])
        covariances += _SCALE_DRIFT**2
        if surprise:
            added = _SURPRISE * min(abs(error), _MAX_SURPRISE) ** 2
            covariances += added
            if index:
                covariances += added / self._shape[index, index] * self._shape

    def _filter(self, context: int) -> _Corrections:
        octave = _octave(context)
        if octave not in self._filters:
            nearest = min(self._filters, key=lambda known: abs(known - octave))
            known = self._filters[nearest]
            added = abs(nearest - octave) * _OCTAVE_DOUBT**2
            covariances = known.covariances + added * (1.0 + self._shape)
            self._filters[octave] = _Corrections(known.means.copy(), covariances)
        return self._filters[octave]

    def _now(self, context: int) -> list[float]:
        grain = context // _CONTEXT_GRAIN
        if grain not in self._costs:
            corrections = np.exp(self._filter(context).means)
            self._costs[grain] = (self._by_curve(context) * corrections).tolist()
        return self._costs[grain]

    def _by_curve(self, context: int) -> Vector:
        grain = context // _CONTEXT_GRAIN
        if grain not in self._tables:
            if len(self._tables) >= _CONTEXTS_KEPT:
                self._tables.clear()
            middle = grain * _CONTEXT_GRAIN + _CONTEXT_GRAIN // 2
            curve = self.curve
            costs = [curve.decode_s(middle), *curve.verify_table(middle, self._longest)]
            self._tables[grain] = np.array(costs)
        return self._tables[grain]


@dataclass
class _Corrections:
    """Normally distributed corrections, as logarithms: `[1 + longest]`.

    `steps` has the corrections suggested by single steps and not applied yet, `observed` the
    numbers of tokens that were observed, and `surprises` the error of the last round of each
    number, and of the last round of any; 0 if it was no surprise.
    """

    means: Vector
    covariances: Vector
    steps: list[float] = field(default_factory=list)
    surprises: dict[int, float] = field(default_factory=dict)
    observed: set[int] = field(default_factory=set)


def _octave(context: int) -> int:
    """0 up to `_SHORT` tokens, where attention takes little time in any round."""
    return (context // _SHORT).bit_length()


class KnownCosts:
    """The costs that all requests share; each set is made when first needed, from what `find`
    returns, measured or expected. `drafts`: whether there can be any, which could change an answer.

    Any thread may read `measured`. `block_rows` are those of an exact answer's passes without a row
    class; a class is searched for up to `most_price`: `FREE` at first, any price once a request
    asks for an exact answer.
    """

    def __init__(self, find: Callable[[], CostCurve], *, drafts: bool = True) -> None:
        self.measured: CostCurve | None = None
        self.block_rows = BLOCK_ROWS
        self.most_price = FREE
        self._find = find
        self._drafts = drafts
        self._expected: CostCurve | None = None
        self._alone: dict[int, LiveCosts] = {}  # by what steps are padded to
        self._together: dict[int, LiveCosts] = {}
        self._looked = -1.0  # the price at which a class was searched for
        self._priced: CostCurve | None = None
        self._usual: RowClass | None = None  # the class of answers that need not be exact

    def alone(self, padded: int = 1) -> LiveCosts:
        """The costs shared by planners whose steps are padded to this many rows."""
        if padded not in self._alone:
            curve = self._curve().with_steps_of(padded)
            self._alone[padded] = LiveCosts(curve, MAX_PLANNED_TOKENS + 1)
        return self._alone[padded]

    def together(self, sequences: int) -> LiveCosts | None:
        """The costs of passes over this many sequences, by rows and by the tokens in all caches. At
        first, they are those of a pass over as many rows of one sequence, without padding. None
        before any planner has needed costs."""
        if not self._alone:
            return None
        if sequences not in self._together:
            self._together[sequences] = LiveCosts(self._curve().unpadded, MAX_BATCH_ROWS)
        return self._together[sequences]

    def step_s(self, context: int) -> float:
        """Seconds of a step without a draft, as measured here; 0 if that is unknown."""
        return self.alone().decode_s(context) if self._alone and self.measured else 0.0

    def _curve(self) -> CostCurve:
        if self._expected is None:
            self._expected = self._find()
            if self._expected.doubt <= MEASURED:
                self.measured = self._expected
        return self.measured or self._expected

    @property
    def wants_curve(self) -> bool:
        """Whether planners use costs that should still be measured, while no request waits."""
        return bool(self._alone) and self.measured is None

    @property
    def wants_row_class(self) -> bool:
        """Whether nobody has looked for forward passes that compute identical rows, at
        `most_price`."""
        known = self.measured
        is_known = known is None or known.row_class is not None or self.most_price <= self._looked
        return bool(self._alone) and not is_known

    def trust(self, curve: CostCurve) -> None:
        """Gives the planners measured costs, unless these are doubtful."""
        if curve.doubt > MEASURED:
            return
        known, self.measured = self.measured, curve
        if known is not None and known.levels == curve.levels:
            self._looked = self.most_price
            return
        for padded, costs in self._alone.items():
            costs.begin(curve.with_steps_of(padded))
        for costs in self._together.values():
            costs.begin(curve.unpadded)

    def rows_of(self, options: Options) -> RowClass | int | None:
        """The row class that an answer stays in, or the rows of each of its forward passes; None if
        each pass has the rows that it needs. Without `--exact` and `--no-exact`, an answer stays in
        a class, as far as one is known, if that costs next to nothing."""
        if options.exact is False or not self._drafts:
            return None
        if options.exact and self.most_price == FREE:
            self.most_price = inf
            self.alone()
        curve = self._curve()
        found = curve.row_class if curve.doubt <= MEASURED else None
        if found is None or not found.allows_drafts:
            return self.block_rows if options.exact else None
        if options.exact:
            return found
        if self._priced is not curve:
            self._priced, self._usual = curve, affordable(curve, found, FREE)
        return self._usual

    @property
    def shares_exact(self) -> bool:
        """Whether exact answers share forward passes, by what is known so far."""
        found = self._curve().row_class
        return found is not None and found.shared > 0

    def exactness(self, options: Options) -> str:
        """How exact an answer is with drafts, and what that costs, for the user."""
        rows = self.rows_of(options)
        if rows is None:
            return "exact up to near-ties" if options.drafts and self._drafts else "exact"
        curve = self._curve()
        if isinstance(rows, int):
            return f"exact, in blocks, which costs {price_of_blocks(curve):.0%}"
        alone = "" if options.exact else " unless batched"
        return f"exact{alone}, which costs {price_of_class(curve, rows):.0%}"
