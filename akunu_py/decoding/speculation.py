"""SpeculationState: what draft_session keeps from one request to the next.

Drafters and what they learnt of their own acceptance, the planner with its costs, the token
buffer, a draft model, and the margins that exact answers need. Each is made or measured when the
first request needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from akunu_py.backend import Backend
from akunu_py.cache.kv_cache import PreallocatedKVCache
from akunu_py.decoding.exactness import SAFETY, TieBreaker, measure_difference
from akunu_py.decoding.token_buffer import TokenBuffer
from akunu_py.drafting import MODEL_DRAFTER, make_drafter
from akunu_py.drafting.base import Drafter
from akunu_py.drafting.draft_model import DraftModel, DraftModelDrafter
from akunu_py.errors import InvalidRequestError
from akunu_py.model import TargetModel
from akunu_py.options import Options
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.planner import MOST_PLANNED_DRAFTS, DraftPlanner, FixedPlanner, Planner
from akunu_py.sampling.sampler import Sampler

Calibrate = Callable[[TargetModel, Backend], CostCurve]
"""Tells what forwards of a model cost on a machine, by measuring them or from its notes."""

DrafterMaker = Callable[[Sampler], Drafter]
"""Makes the drafter of one request, by how that request's tokens are chosen."""


@dataclass
class _Experience:
    """What was learnt from requests of one kind."""

    drafters: dict[str, Drafter] = field(default_factory=dict)
    planner: DraftPlanner | None = None


class SpeculationState:
    """Equips requests for draft_session.

    What is learnt from gaps that are filled and from other requests is kept apart: a short answer
    in the middle of a file ends where a copy of that file would go on.

    Args:
        model: the target.
        backend: the machine it was loaded for.
        calibrate: asked for the costs once, by the first request that leaves the length of
            drafts to the planner.
        draft_model: drafts where a request's drafter is `model`.

    Attributes:
        buffer: of the size that the last planner needs.
        cost_curve: what forwards cost, once a request needed to know; any thread may read it.
        logit_differences: what `measure_difference` found, by how many drafts a forward verifies;
            empty until an exact answer is wanted.

    Raises:
        InvalidRequestError: if the draft model has another tokenizer than the target.
    """

    def __init__(
        self,
        model: TargetModel,
        backend: Backend,
        calibrate: Calibrate,
        draft_model: TargetModel | None = None,
    ) -> None:
        self.buffer = TokenBuffer()
        self.logit_differences: dict[int, float] = {}
        self._model = model
        self._backend = backend
        self._calibrate = calibrate
        self._draft_model = None if draft_model is None else DraftModel(draft_model, model)
        self._makers: dict[str, DrafterMaker] = {}
        self._experience = {fills_gap: _Experience() for fills_gap in (False, True)}
        self._costs: LiveCosts | None = None
        self.cost_curve: CostCurve | None = None

    def add_drafter(self, name: str, make: DrafterMaker) -> None:
        """Lets requests name a drafter of the caller's own; `make` is called for each of them."""
        self._makers[name] = make

    def drafter(self, name: str, sampler: Sampler, *, fills_gap: bool = False) -> Drafter:
        """The drafter called `name`, the same one for requests of a kind unless it was added.

        Raises:
            InvalidRequestError: if there is none, or no draft model for it.
        """
        if name == MODEL_DRAFTER:
            if self._draft_model is None:
                raise InvalidRequestError(
                    "There is no draft model to draft with; load one with --draft-model NAME."
                )
            return DraftModelDrafter(self._draft_model, sampler.sampling, sampler.seed)
        if name in self._makers:
            return self._makers[name](sampler)
        drafters = self._experience[fills_gap].drafters
        if name not in drafters:
            drafters[name] = make_drafter(name)
        return drafters[name]

    def planner(self, options: Options, *, fills_gap: bool = False) -> Planner:
        """Who decides on the length of drafts; the buffer is made to suit."""
        longest = longest_draft(options)
        if self.buffer.max_drafts != longest:
            self.buffer = TokenBuffer(longest)
        if options.num_draft_tokens is not None:
            return FixedPlanner(longest)
        if self._costs is None:
            self.cost_curve = self._calibrate(self._model, self._backend)
            self._costs = LiveCosts(self.cost_curve, MOST_PLANNED_DRAFTS + 1)
        experience = self._experience[fills_gap]
        if experience.planner is None:
            experience.planner = DraftPlanner(self._costs)
        return experience.planner

    def tie_breaker(
        self, options: Options, cache: PreallocatedKVCache, sampler: Sampler, known: int
    ) -> TieBreaker | None:
        """Finds near-ties by a margin measured on this model; None unless exactness is wanted."""
        if not options.exact:
            return None
        margin = SAFETY * self.logit_difference(longest_draft(options)) * sampler.max_logit_gain
        return TieBreaker(self._model, cache, sampler, known, margin)

    def logit_difference(self, drafts: int) -> float:
        """How far logits of forwards that verify so many drafts may be from plain ones."""
        if drafts not in self.logit_differences:
            self.logit_differences[drafts] = measure_difference(self._model, drafts)
        return self.logit_differences[drafts]


def longest_draft(options: Options) -> int:
    """The most drafts that one forward of a request may verify."""
    asked = options.num_draft_tokens
    return MOST_PLANNED_DRAFTS if asked is None else asked
