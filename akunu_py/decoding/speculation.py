"""SpeculationState: what an engine keeps for drafting from one request to the next: drafters,
planners, what they learnt about acceptance, and a draft model.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.drafting import AUTO_DRAFTER, HEAD_DRAFTER, MODEL_DRAFTER, NETWORKS, make_drafter
from akunu_py.drafting.acceptance import AcceptanceRates, priors
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.chain import Chain, Guesser, chain_priors
from akunu_py.drafting.guessing import DraftModel, DraftModelGuesser, HeadGuesser
from akunu_py.errors import InvalidRequestError
from akunu_py.memory.projects import Memory
from akunu_py.model.target_model import TargetModel
from akunu_py.options import MAX_PLANNED_TOKENS, Options
from akunu_py.planning.costs import KnownCosts
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner
from akunu_py.sampling.sampler import Sampler

DrafterFactory = Callable[[Sampler], Drafter]
"""Makes the drafter of one request, given how that request's tokens are chosen."""


@dataclass
class _Experience:
    """What was learnt from fill-ins, or from other requests: the acceptance rates, which all share,
    and the drafters and planners that no request is using, the last used one at the end. Planners
    are keyed by the padding of their steps."""

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
    """Makes the `DraftSession` of each request, with what was learnt from earlier requests.

    What is learnt from fill-ins is kept apart from the rest: a short answer in the middle of a file
    ends where a copy of that file would continue. Requests that run at the same time each have a
    drafter and a planner, and share only acceptance and costs. Raises InvalidRequestError if the
    tokenizers of the draft model and the target differ.
    """

    def __init__(
        self,
        model: TargetModel,
        costs: KnownCosts,
        draft_model: TargetModel | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._model = model
        self._costs = costs
        self._memory = memory or Memory()
        self.draft_model = None if draft_model is None else DraftModel(draft_model, model)
        self._factories: dict[str, DrafterFactory] = {}
        self._experience = {fills_gap: _Experience() for fills_gap in (False, True)}
        self._guess_s: dict[str, float] = {}  # of a guess, by what made it

    @property
    def rates(self) -> AcceptanceRates:
        """What requests other than fill-ins have learnt about acceptance."""
        return self._experience[False].rates

    def add_drafter(self, name: str, make: DrafterFactory) -> None:
        """Lets requests name a drafter of the caller's; `make` is called for each request."""
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
        Call its `release` when the request ends. Raises InvalidRequestError for an unknown drafter.
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
        if not needs_drafts or self._model.why_no_drafts:
            loans.close()
            return DraftSession()
        rows = self._costs.rows_of(options)
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

    def required_draft_model(self) -> DraftModel:
        """The draft model, or an InvalidRequestError."""
        if self.draft_model is None:
            raise InvalidRequestError("No draft model is loaded; load one with --draft-model NAME.")
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
                "No head is loaded to draft with: the model has none, or --no-mtp was given; "
                "see --mtp."
            )
            raise InvalidRequestError(why)
        else:
            return None
        chain = Chain(
            guesser, self._experience[fills_gap].rates, self._guess_s.get(guesser.name, 0.0)
        )
        loans.callback(lambda: self._guess_s.update({chain.name: chain.guess_s}))
        return chain

    def _borrow_planner(self, options: Options, fills_gap: bool, loans: ExitStack) -> Planner:
        rows = self._costs.rows_of(options)
        if options.num_draft_tokens is not None or isinstance(rows, int):
            return FixedPlanner(_longest_draft(options))
        known, padded = self._experience[fills_gap], 1 if rows is None else rows.smallest
        costs, planners = self._costs.alone(padded), known.planners[padded]
        planner = planners.pop() if planners else DraftPlanner(costs, known.rates)
        loans.callback(planners.append, planner)
        return planner


def _longest_draft(options: Options) -> int:
    if options.num_draft_tokens is not None:
        return options.num_draft_tokens
    return MAX_PLANNED_TOKENS
