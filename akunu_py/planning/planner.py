"""Planners: how many tokens of a draft the next round verifies.

`DraftPlanner` takes the number that promises the most tokens a second on this machine, 0 included;
`FixedPlanner` takes the same number every time. Neither can change what is emitted, only when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from akunu_py.drafting.base import Draft
from akunu_py.planning.acceptance import AcceptanceModel
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.declined_draft import DeclinedDraft, PromiseCalibration
from akunu_py.planning.habits import PipelineGain, Probes, ProposalBackoff, Streak
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.theory import expected_tokens

MOST_PLANNED_DRAFTS: Final = 32
"""The most draft tokens of a planned round: the buffer's size if no number is given."""

HYSTERESIS: Final = 0.03
"""The speedup over plain decoding that drafting must promise before the planner takes it up."""


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a planner learns from.

    Attributes:
        draft: the draft tokens that were verified.
        tokens: the tokens that were emitted.
        accepted: how many draft tokens were accepted.
        context: tokens in the cache before the round.
        seconds: from the end of the previous round to the end of this one; None if the interval
            includes other work.
        pipelined: whether the round was submitted before the previous one ended.
    """

    draft: Draft
    tokens: Sequence[int]
    accepted: int
    context: int
    seconds: float | None
    pipelined: bool


class Planner(Protocol):
    """Chooses the length of drafts. Never raises, whatever a drafter proposes."""

    def begin(self) -> None:
        """Starts a request."""

    def should_propose(self, *, pipelined: bool) -> bool:
        """Whether to ask the drafter for a proposal now; if not, the round has no draft.

        Args:
            pipelined: whether a single step is under way.
        """

    def should_pipeline(self, context: int) -> bool:
        """Whether to submit the next single step before the result of this one is known.

        Called while a round without a draft is under way. If False, the loop waits for the result,
        and the next round may verify a draft that follows it.

        Args:
            context: tokens in the cache, with those of this round.
        """

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        """How many tokens of a draft to verify: at most `limit` and its length.

        Args:
            draft: the proposal.
            context: tokens in the cache.
            limit: the most that fit.
            pipelined: whether a single step is under way. If so, 0 continues the pipeline; more
                stops it, and the loop asks again, with a new proposal, once the step is done.
        """

    def observe(self, report: RoundReport) -> None:
        """Learns from a round; called before the next proposal."""


class FixedPlanner:
    """Verifies as many tokens as the drafter suggests, up to a number: `--num-draft-tokens N`.

    Args:
        num_draft_tokens: that number.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def begin(self) -> None:
        pass

    def should_propose(self, *, pipelined: bool) -> bool:
        return True

    def should_pipeline(self, context: int) -> bool:
        return True

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        suggested_length = len(draft) if draft.suggested_length is None else draft.suggested_length
        return max(0, min(self._num_draft_tokens, limit, len(draft), suggested_length))

    def observe(self, report: RoundReport) -> None:
        pass


class DraftPlanner:
    """Takes the length that promises the most tokens a second; 0 if none beats plain decoding.

    It outlives requests: what it learns of acceptance and costs holds for the next one too. While
    no length pays, it is parked. It then still compares the drafts that it declines with what is
    emitted, so it notices when a text becomes predictable.

    Args:
        costs: what forwards cost on this machine. Planners may share live costs, made for one
            token more than `longest`.
        longest: the most draft tokens of a round.
    """

    def __init__(self, costs: CostCurve | LiveCosts, longest: int = MOST_PLANNED_DRAFTS) -> None:
        self._costs = costs if isinstance(costs, LiveCosts) else LiveCosts(costs, longest + 1)
        self._longest = longest
        self._acceptance = AcceptanceModel()
        self._calibration = PromiseCalibration()
        self._declined_draft = DeclinedDraft(self._acceptance, self._calibration)
        self._backoff = ProposalBackoff()
        self._probes = Probes()
        self._pipeline_gain = PipelineGain()
        self._streak = Streak()
        self._parked = True
        self._promised = 0.0
        self._after_step = False

    def begin(self) -> None:
        for part in (self._backoff, self._probes, self._streak, self._declined_draft):
            part.begin()
        self._after_step = False

    def should_propose(self, *, pipelined: bool) -> bool:
        should = self._backoff.should_propose(pipelined=pipelined)
        if should and self._after_step:
            self._pipeline_gain.proposed()
        return should

    def should_pipeline(self, context: int) -> bool:
        step = self._costs.decode_s(context)
        alone = self._costs.verify_table(context, 1)[0]
        return self._pipeline_gain.should_pipeline(max(0.0, alone / step - 1.0))

    def choose(self, draft: Draft, *, context: int, limit: int, pipelined: bool) -> int:
        limit = min(limit, len(draft.tokens), self._longest)
        is_probe = self._probes.take_pending(pipelined=pipelined)
        if limit <= 0:
            return 0
        accept_probs = self._acceptance.accept_probs(draft)[:limit]
        step = self._costs.decode_s(context)
        rounds = self._costs.verify_table(context, 1 + limit)
        promises = [emitted - 1.0 for emitted in expected_tokens(accept_probs)[1:]]
        tokens = [1.0 + self._calibration.share * promise for promise in promises]
        # A parked planner wants a little more, so that it does not change its mind all the time.
        needed = (1.0 + HYSTERESIS * self._parked) / step
        speeds = at_once = _speeds(tokens, rounds)
        if pipelined or self._after_step:
            later = self._speeds_after_step(accept_probs[0], tokens, step, rounds)
            if pipelined:
                speeds = later
            if self._after_step:
                self._notice_gain(tokens, at_once, later, step, needed)
        fastest = max(speeds)
        length = 1 + speeds.index(fastest)
        self._parked = fastest <= needed
        if self._parked and not self._probes.due(pipelined=pipelined) and not is_probe:
            if not self._declined_draft:
                self._watch(draft, promises, rounds, needed)
            return 0
        self._backoff.drafted()
        self._promised = promises[length - 1]
        return length

    def observe(self, report: RoundReport) -> None:
        drafted = bool(report.draft.tokens)
        self._declined_draft.follow(report.tokens)
        self._after_step = not drafted
        if drafted:
            self._calibration.settle(self._promised, report.accepted)
            self._acceptance.learn(report.draft, report.accepted)
        self._streak.count(drafted=drafted)
        if not self._parked:
            self._probes.drafting()
        if report.seconds is None:
            return
        if report.pipelined:
            self._costs.observe_step(report.seconds, report.context)
        else:
            size = 1 + len(report.draft)
            self._costs.observe_round(size, report.seconds, report.context)

    def _speeds_after_step(
        self, confirmed: float, tokens: Sequence[float], step: float, rounds: Sequence[float]
    ) -> list[float]:
        """Expected tokens a second with 1, 2 ... draft tokens, if a single step is under way.

        The draft waits for the step, and is verified only if the step confirms its first token; the
        draft that is proposed then is taken to be as good as this one. Back at single steps, the
        pipeline has to be filled again; the rounds of the streak share that cost.
        """
        refill = max(0.0, rounds[0] - step)
        futile = (1.0 - confirmed) * (step + refill)
        refill_each = refill / max(1.0, self._streak.usual)
        return [
            (confirmed * emitted + 1.0 - confirmed) / (confirmed * (cost + refill_each) + futile)
            for emitted, cost in zip(tokens, rounds[1:], strict=True)
        ]

    def _notice_gain(
        self,
        tokens: Sequence[float],
        at_once: Sequence[float],
        later: Sequence[float],
        step: float,
        needed: float,
    ) -> None:
        """Learns how much sooner a draft after a single step comes if no other step is under way.

        In a pipeline the same tokens come after one more step, at the speed of the best draft then
        or of plain decoding.
        """
        if (fastest := max(at_once)) > needed:
            emitted = tokens[at_once.index(fastest)]
            afterwards = (emitted - 1.0) / max(*later, 1.0 / step)
            self._pipeline_gain.paid((step + afterwards - emitted / fastest) / step)

    def _watch(
        self, draft: Draft, promises: Sequence[float], rounds: Sequence[float], needed: float
    ) -> None:
        """Follows a declined draft, with the length that its own promises would have justified."""
        speeds = _speeds([1.0 + promise for promise in promises], rounds)
        fastest = max(speeds)
        wanted = 1 + speeds.index(fastest) if fastest > needed else 0
        promised = promises[wanted - 1] if wanted else 0.0
        self._declined_draft.watch(draft.cut(self._longest), wanted=wanted, promised=promised)


def _speeds(tokens: Sequence[float], rounds: Sequence[float]) -> list[float]:
    """Tokens a second of rounds that emit `tokens`; the first of `rounds` has no draft."""
    return [emitted / cost for emitted, cost in zip(tokens, rounds[1:], strict=True)]
