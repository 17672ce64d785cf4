"""KnownCosts: what a model's forward passes cost on this machine, which of them compute identical
rows, and what that means for exact answers.

Costs are looked up when a request first needs them, and learnt from requests. The caller measures.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from akunu_py.options import MAX_PLANNED_TOKENS, Options
from akunu_py.planning.cost_curve import MEASURED, CostCurve
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.row_class import BLOCK_ROWS, FREE, RowClass
from akunu_py.planning.theory import MAX_BATCH_ROWS, affordable, price_of_blocks, price_of_class


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
