"""Planners: how many tokens of a draft the next round verifies.

`DraftPlanner` takes the number that promises the most tokens a second on this machine, 0 included;
`FixedPlanner` takes the same number every time. Neither can change what is emitted, only when.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Protocol

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.declined_draft import DeclinedDraft, PromiseCalibration
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.theory import expected_tokens
from akunu_py.stats import Round

MOST_PLANNED_DRAFTS: Final = 32
"""The most drafts a planned round verifies: the buffer's size where no number was asked for."""

HYSTERESIS: Final = 0.03
"""What drafting must promise on top of plain decoding before it is taken up."""

FIRST_PROBE: Final = 128
LAST_PROBE: Final = 4096
"""Drafts declined in a row before one is verified all the same, at first and at most."""

PROPOSE_BACKOFF: Final = (16, 48, 48)
"""Looks in vain, while single steps are under way, after which one more step goes by between
two of them: in this request and those before it, up to the last look that led to a draft. Looking
is cheap, but a small model's steps are short."""

_LEAST_SAVING: Final = 0.05
"""Of a step; a smaller saving is not waited for."""

_SAVING_RATE: Final = 0.1
_FIRST_STREAK: Final = 2.0
_STREAK_RATE: Final = 0.2


class Planner(Protocol):
    """Decides on the length of drafts. Never raises, whatever a drafter proposes."""

    def begin(self) -> None:
        """Starts a request."""

    def should_propose(self, *, pipelined: bool) -> bool:
        """Whether to ask for a proposal now; if not, the round goes without a draft.

        Args:
            pipelined: whether a single step is under way.
        """

    def should_pipeline(self, context: int) -> bool:
        """Whether to submit the next single step before it is known what this one brings.

        Asked while a round without a draft is under way. If not, its result is waited for, and the
        next round may verify a draft that follows it.

        Args:
            context: tokens in the cache, with those of this round.
        """

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        """How many of a draft's tokens to verify: at most `limit` and its length.

        Args:
            draft: what is proposed.
            context: tokens in the cache.
            limit: the most that fit.
            pipelined: whether a single step is under way. Choosing 0 goes on with it. Choosing
                more stops it, and asks again with what is proposed once it is done.
        """

    def observe(self, done: Round) -> None:
        """Learns from a round; called before the next draft is proposed."""


class FixedPlanner:
    """Always as many drafts as the drafter advises, up to a number: `--num-draft-tokens N`.

    Args:
        drafts: that number.
    """

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts

    def begin(self) -> None:
        pass

    def should_propose(self, *, pipelined: bool) -> bool:
        return True

    def should_pipeline(self, context: int) -> bool:
        return True

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        suggested_length = len(draft) if draft.suggested_length is None else draft.suggested_length
        return max(0, min(self._drafts, limit, len(draft), suggested_length))

    def observe(self, done: Round) -> None:
        pass


class DraftPlanner:
    """The length that promises the most tokens a second; 0 where no length beats plain decoding.

    It outlives requests: what it learns of acceptance and of costs holds for the next one too.
    Drafts that it declines are compared with what is emitted anyway, so parking does not make it
    blind to a text that has become predictable. Only costs need a probe now and then.

    Args:
        costs: what forwards cost on this machine. Planners may share live ones, made for one
            token more than `longest`.
        longest: the most drafts a round may verify.
    """

    def __init__(self, costs: CostCurve | LiveCosts, longest: int = MOST_PLANNED_DRAFTS) -> None:
        self._costs = costs if isinstance(costs, LiveCosts) else LiveCosts(costs, longest + 1)
        self._longest = longest
        self._acceptance = AcceptanceModel()
        self._calibration = PromiseCalibration()
        self._declined_draft = DeclinedDraft(self._acceptance, self._calibration)
        self._usual_streak = _FIRST_STREAK
        # After single steps: of a step, what a draft is expected to save; how often there is one.
        self._usual_saving = self._draftable = 0.0
        self._parked = True
        self._declined = 0
        self._patience = FIRST_PROBE
        self._empty_proposals = 0
        self.begin()

    def begin(self) -> None:
        self._empty_proposals = min(self._empty_proposals, PROPOSE_BACKOFF[0])
        self._skips = 0
        self._declined_draft.drop()
        self._promised = 0.0
        self._streak = 0
        self._probes = False
        self._stepped = False

    def should_propose(self, *, pipelined: bool) -> bool:
        if pipelined and self._skips:
            self._skips -= 1
            return False
        if pipelined:
            self._empty_proposals += 1
            self._skips = bisect_left(PROPOSE_BACKOFF, self._empty_proposals)
        if self._stepped:
            self._usual_saving *= 1.0 - _SAVING_RATE
            self._draftable *= 1.0 - _SAVING_RATE
        return True

    def should_pipeline(self, context: int) -> bool:
        """Running ahead saves filling the pipeline again; it misses drafts that follow at once."""
        step = self._costs.decode_s(context)
        refill = max(0.0, self._costs.verify_table(context, 1)[0] / step - 1.0)
        return self._usual_saving <= (1.0 - self._draftable) * refill + _LEAST_SAVING

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        limit = min(limit, len(draft.tokens), self._longest)
        probes, self._probes = self._probes and not pipelined, False
        if limit <= 0:
            return 0
        accept_probs = self._acceptance.accept_probs(draft)[:limit]
        step = self._costs.decode_s(context)
        rounds = self._costs.verify_table(context, 1 + limit)
        promises = expected_tokens(accept_probs)[1:]
        tokens = [1.0 + self._calibration.share * (emitted - 1.0) for emitted in promises]
        at_once = [emitted / cost for emitted, cost in zip(tokens, rounds[1:], strict=True)]
        later: Sequence[float] = ()
        if pipelined or self._stepped:
            later = self._speeds_after(accept_probs[0], tokens, step, rounds)
        needed = (1.0 + HYSTERESIS * self._parked) / step
        if self._stepped and (fastest := max(at_once)) > needed:
            emitted = tokens[at_once.index(fastest)]
            afterwards = (emitted - 1.0) / max(*later, 1.0 / step)
            saving = (step + afterwards - emitted / fastest) / step
            self._usual_saving += _SAVING_RATE * max(0.0, saving)
            self._draftable += _SAVING_RATE
        speeds = later if pipelined else at_once
        best = 1 + speeds.index(max(speeds))
        if speeds[best - 1] > needed:
            self._parked = False
        else:
            self._parked = True
            self._declined += 1
            due = self._declined >= self._patience and pipelined
            if due:
                self._declined = 0
                self._patience = min(2 * self._patience, LAST_PROBE)
                self._probes = True
            if not (due or probes):
                best = 0
        if best:
            self._empty_proposals = self._skips = 0
            self._promised = promises[best - 1] - 1.0
        elif not self._declined_draft:
            self._watch(draft, promises, rounds, needed)
        return best

    def observe(self, done: Round) -> None:
        self._declined_draft.follow(done.tokens)
        self._stepped = not done.draft.tokens
        if done.draft.tokens:
            self._calibration.settle(self._promised, done.accepted)
            self._acceptance.learn(done.draft, done.accepted)
            self._streak += 1
        elif self._streak:
            self._usual_streak += _STREAK_RATE * (self._streak - self._usual_streak)
            self._streak = 0
        if not self._parked:
            self._patience = FIRST_PROBE
        if done.seconds is None:
            return
        if done.pipelined:
            self._costs.observe_step(done.seconds, done.context)
        else:
            size = 1 + len(done.draft)
            self._costs.observe_round(size, done.seconds, done.context)

    def _speeds_after(
        self, confirmed: float, tokens: Sequence[float], step: float, rounds: Sequence[float]
    ) -> list[float]:
        """Expected tokens a second with 1, 2 ... drafts, while a step is under way.

        A draft is verified only after it, and only if the step confirms the draft's first token;
        whatever is proposed then is taken to be as good as what is proposed now. Coming back to
        single steps, the pipeline has to be filled again: that is the price of leaving it, shared
        by the rounds until then.
        """
        refill = max(0.0, rounds[0] - step)
        futile = (1.0 - confirmed) * (step + refill)
        share = refill / max(1.0, self._usual_streak)
        return [
            (confirmed * emitted + 1.0 - confirmed) / (confirmed * (cost + share) + futile)
            for emitted, cost in zip(tokens, rounds[1:], strict=True)
        ]

    def _watch(
        self, draft: Draft, promises: Sequence[float], rounds: Sequence[float], needed: float
    ) -> None:
        """Has a declined draft watched; had it been trusted, it might have been verified."""
        speeds = [emitted / cost for emitted, cost in zip(promises, rounds[1:], strict=True)]
        fastest = max(speeds)
        wanted = 1 + speeds.index(fastest) if fastest > needed else 0
        promised = promises[wanted - 1] - 1.0 if wanted else 0.0
        self._declined_draft.watch(draft.cut(self._longest), wanted=wanted, promised=promised)
