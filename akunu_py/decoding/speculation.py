"""SpeculationState: what an engine keeps of speculation from one request to the next.

Drafters, planners, what they learnt of acceptance and costs, and a draft model. Each is made or
measured when a request first needs it.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from typing import Final

from akunu_py.cache.model_cache import no_rollback_reason
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.target import BLOCK_ROWS
from akunu_py.drafting import AUTO_DRAFTER, HEAD_DRAFTER, MODEL_DRAFTER, NETWORKS, make_drafter
from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.chain import Chain, Guesser, chain_priors
from akunu_py.drafting.draft_model import DraftModel
from akunu_py.drafting.evidence import priors
from akunu_py.drafting.guessing import DraftModelGuesser, HeadGuesser
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import Backend
from akunu_py.memory.projects import Memory
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_PLANNED_TOKENS, Options
from akunu_py.planning.cost_curve import MEASURED, CostCurve
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner
from akunu_py.planning.row_class import FREE, RowClass
from akunu_py.planning.theory import MAX_BATCH_ROWS, affordable, price_of_class
from akunu_py.sampling.sampler import Sampler

_SEES_AHEAD: Final = "phi3small"
"""The model of mlx-lm whose tokens see later ones; `tests/test_architectures.py` finds it."""

Calibrate = Callable[[TargetModel, Backend], CostCurve]
"""Returns what is known or expected of what forwards of a model cost on a machine."""

DrafterFactory = Callable[[Sampler], Drafter]
"""Makes the drafter of one request, given how that request's tokens are chosen."""


@dataclass
class _Experience:
    """What was learnt from fill-ins, or from other requests: rates of acceptance, which all share,
    and the drafters and planners that no request uses now, the one used last at the end; planners
    by what their steps are padded to."""

    rates: AcceptanceRates = field(
        default_factory=lambda: AcceptanceRates(priors() | chain_priors())
    )
    drafters: defaultdict[type[Drafter], list[Drafter]] = field(
        default_factory=lambda: defaultdict(list)
    )
    planners: defaultdict[int, list[DraftPlanner]] = field(
        default_factory=lambda: defaultdict(list)
    )


class SpeculationState:
    """Makes the `DraftSession` of each request, with what earlier requests taught.

    What is learnt from fill-ins is kept apart from what is learnt from other requests: a short
    answer in the middle of a file ends where a copy of that file would continue. Requests that run
    at the same time have a drafter and a planner each. These share what they learn of acceptance
    and costs; the rest goes to a later request.

    Attributes:
        cost_curve: what forwards cost; None until it was needed and measured. Any thread may read
            it.
        draft_model: drafts for requests that name it; None if there is none.
        why_impossible: one line for the user if drafts would change answers or cannot be dropped.
        block_rows: the rows of all forwards of an exact answer where no sizes are alike.
        most_price: what forwards that compute a row alike may cost to be looked for: anything, once
            an exact answer was asked for.

    Raises:
        InvalidRequestError: if the draft model has another tokenizer than the target.
    """

    def __init__(
        self,
        model: TargetModel,
        backend: Backend,
        calibrate: Calibrate,
        draft_model: TargetModel | None = None,
        memory: Memory | None = None,
    ) -> None:
        self.cost_curve: CostCurve | None = None
        self.block_rows = BLOCK_ROWS
        self.most_price = FREE
        self._looked = -1.0
        self._priced: CostCurve | None = None
        self._usual: RowClass | None = None  # the class of answers that need not be exact
        self._model = model
        self._backend = backend
        self._calibrate = calibrate
        self._memory = memory or Memory()
        self.draft_model = None if draft_model is None else DraftModel(draft_model, model)
        self._factories: dict[str, DrafterFactory] = {}
        self._experience = {fills_gap: _Experience() for fills_gap in (False, True)}
        self._expected: CostCurve | None = None
        self._costs: dict[int, LiveCosts] = {}  # by what steps are padded to
        self._batch_costs: dict[int, LiveCosts] = {}
        self._step_s: dict[str, float] = {}  # of a guess, by what made it
        self.why_impossible = no_rollback_reason(model.make_cache(1))
        if model.config.get("model_type") == _SEES_AHEAD:
            self.why_impossible = (
                "Speculation is off: in mlx-lm's form of this model, a token sees those after it "
                "in the same forward, so drafts would change the answer."
            )

    def add_drafter(self, name: str, make: DrafterFactory) -> None:
        """Lets requests name a drafter of the caller's own; `make` is called for each of them."""
        self._factories[name] = make

    def session(
        self,
        options: Options,
        sampler: Sampler,
        prompt: Sequence[int],
        end_tokens: frozenset[int] = frozenset(),
        fills_gap: bool = False,
    ) -> DraftSession:
        """The drafting side of one request; it drafts nothing if drafting is off or impossible.
        Call its `release` when the request ends.

        Raises:
            InvalidRequestError: if the request names a drafter that does not exist.
        """
        # Made even if nothing will be drafted, so that a wrong name is always an error.
        loans = ExitStack()
        try:
            drafter = self._borrow_drafter(options, sampler, fills_gap, loans)
            chain = self._borrow_chain(options, sampler, prompt, fills_gap, loans)
        except BaseException:
            loans.close()
            raise
        needs_drafts = options.drafts and (options.max_tokens is None or options.max_tokens > 1)
        if not needs_drafts or self.why_impossible:
            loans.close()
            return DraftSession()
        rows = self.rows_of(options)
        longest = rows - 1 if isinstance(rows, int) else _longest_draft(options)
        return DraftSession(
            drafter,
            self._borrow_planner(options, fills_gap, loans),
            DraftTrimmer(end_tokens, options.stop, self._model.tokenizer.decode),
            sampler.constraint,
            chain=chain,
            num_draft_tokens=longest,
            release=loans.close,
        )

    def drafter(self, name: str, sampler: Sampler) -> Drafter:
        """A drafter as requests that name it have it; errors as for `session`."""
        return self._borrow_drafter(Options(drafter=name), sampler, False, ExitStack())

    def required_draft_model(self) -> DraftModel:
        """The draft model, or an InvalidRequestError."""
        if self.draft_model is None:
            raise InvalidRequestError(
                "There is no draft model to draft with; load one with --draft-model NAME."
            )
        return self.draft_model

    def _borrow_drafter(
        self, options: Options, sampler: Sampler, fills_gap: bool, loans: ExitStack
    ) -> Drafter:
        """A drafter that no other request uses until `loans` is closed."""
        name = options.drafter
        if name in self._factories:
            return self._factories[name](sampler)
        known = self._experience[fills_gap]
        drafter = make_drafter("none" if name in NETWORKS else name)
        kind = type(drafter)
        if known.drafters.get(kind):
            drafter = known.drafters[kind].pop()
        elif isinstance(drafter, AutoDrafter):
            drafter = AutoDrafter(rates=known.rates)
        loans.callback(known.drafters[kind].append, drafter)
        if isinstance(drafter, AutoDrafter):
            self._memory.lend(drafter, options.project)
            loans.callback(drafter.end)
        return drafter

    def _borrow_chain(
        self,
        options: Options,
        sampler: Sampler,
        prompt: Sequence[int],
        fills_gap: bool,
        loans: ExitStack,
    ) -> Chain | None:
        """What guesses for a request beside its drafter, with what earlier ones taught."""
        guesser: Guesser
        name, has_draft_model = options.drafter, self.draft_model is not None
        if name in self._factories:
            return None
        if name == MODEL_DRAFTER or (name == AUTO_DRAFTER and has_draft_model):
            lent = self.required_draft_model().lend(prompt)
            loans.callback(setattr, lent, "in_use", False)
            guesser = DraftModelGuesser(lent, sampler)
        elif self._model.head is not None and name in (AUTO_DRAFTER, HEAD_DRAFTER):
            guesser = HeadGuesser(self._model.head, sampler)
        elif name == HEAD_DRAFTER:
            why = self._model.why_no_head or (
                "No head is loaded to draft with: the model brings none, or --no-mtp leaves it "
                "out; see --mtp."
            )
            raise InvalidRequestError(why)
        else:
            return None
        chain = Chain(
            guesser, self._experience[fills_gap].rates, self._step_s.get(guesser.name, 0.0)
        )
        loans.callback(lambda: self._step_s.update({chain.name: chain.step_s}))
        return chain

    def _borrow_planner(self, options: Options, fills_gap: bool, loans: ExitStack) -> Planner:
        rows = self.rows_of(options)
        if options.num_draft_tokens is not None or isinstance(rows, int):
            return FixedPlanner(_longest_draft(options))
        known, padded = self._experience[fills_gap], 1 if rows is None else rows.smallest
        costs, planners = self.find_costs(padded), known.planners[padded]
        planner = planners.pop() if planners else DraftPlanner(costs, known.rates)
        loans.callback(planners.append, planner)
        return planner

    def find_costs(self, padded: int = 1) -> LiveCosts:
        """The costs that planners share whose steps are padded to so many rows."""
        if padded not in self._costs:
            curve = self._find_curve().with_steps_of(padded)
            self._costs[padded] = LiveCosts(curve, MAX_PLANNED_TOKENS + 1)
        return self._costs[padded]

    def _find_curve(self) -> CostCurve:
        """The measured costs, or what is expected; looks them up if nobody has needed them yet."""
        if self._expected is None:
            self._expected = self._calibrate(self._model, self._backend)
            if self._expected.doubt <= MEASURED:
                self.cost_curve = self._expected
        return self.cost_curve or self._expected

    def step_s(self, context: int) -> float:
        """Seconds of a step without a draft, as measured here; 0 where that is not known."""
        return self.find_costs().decode_s(context) if self._costs and self.cost_curve else 0.0

    @property
    def wants_costs(self) -> bool:
        """Whether planners use costs that should be measured while no request waits."""
        return bool(self._costs) and self.cost_curve is None

    @property
    def wants_row_class(self) -> bool:
        """Whether nobody has looked for forwards that compute a row alike, at `most_price`."""
        known = self.cost_curve
        is_known = known is None or known.row_class is not None or self.most_price <= self._looked
        return bool(self._costs) and not is_known

    def trust(self, curve: CostCurve) -> None:
        """Gives the planners costs that were measured, unless they are doubted."""
        if curve.doubt > MEASURED:
            return
        known, self.cost_curve = self.cost_curve, curve
        if known is not None and known.levels == curve.levels:
            self._looked = self.most_price
            return
        for padded, costs in self._costs.items():
            costs.begin(curve.with_steps_of(padded))
        for costs in self._batch_costs.values():
            costs.begin(curve.unpadded)

    def batch_costs(self, sequences: int) -> LiveCosts | None:
        """What forwards over this many sequences cost, by their rows and by the tokens that all
        caches hold: at first, what one over as many rows of one sequence costs without padding.
        None before any planner has needed costs."""
        if not self._costs:
            return None
        if sequences not in self._batch_costs:
            curve = self._find_curve().unpadded
            self._batch_costs[sequences] = LiveCosts(curve, MAX_BATCH_ROWS)
        return self._batch_costs[sequences]

    def rows_of(self, options: Options) -> RowClass | int | None:
        """The class of forwards that an answer stays in, or the rows of each of its forwards; None
        if each has the rows that it needs. Without `--exact` and `--no-exact`, an answer stays in a
        class, as far as one is known, if that costs next to nothing."""
        if options.exact is False or self.why_impossible:
            return None
        if options.exact and self.most_price == FREE:
            self.most_price = inf
            self.find_costs()
        curve = self._find_curve()
        found = curve.row_class if curve.doubt <= MEASURED else None
        if found is None or not found.allows_drafts:
            return self.block_rows if options.exact else None
        if options.exact:
            return found
        if self._priced is not curve:
            self._priced, self._usual = curve, affordable(curve, found, FREE)
        return self._usual

    def exactness(self, options: Options) -> str:
        """What drafts may change in an answer and what it costs that they do not, for the user."""
        rows = self.rows_of(options)
        if rows is None:
            return "exact up to near-ties" if options.drafts else "exact"
        if isinstance(rows, int):
            return f"exact, in blocks of {rows}"
        alone = "" if options.exact else " if computed alone"
        return f"exact{alone}, which costs {price_of_class(self._find_curve(), rows):.0%}"


def _longest_draft(options: Options) -> int:
    if options.num_draft_tokens is not None:
        return options.num_draft_tokens
    return MAX_PLANNED_TOKENS
