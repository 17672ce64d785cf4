"""Planners: how many tokens of a draft the next round verifies.

`DraftPlanner` takes the number, 0 included, that promises the most tokens per second here;
`FixedPlanner` takes the same number every time. Neither can change what is emitted, only when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import truediv
from typing import Final, NamedTuple, Protocol

from akunu_py.drafting.base import Draft, Prospects
from akunu_py.planning.acceptance import AcceptanceModel, DeclinedDraft
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.drawing import Choices, DrawPlan, DrawPlanner, RunningMean
from akunu_py.planning.live_costs import LiveCosts
from akunu_py.planning.policies import PipelineGain, Probes, ProposalBackoff
from akunu_py.planning.theory import expected_replays, expected_tokens
from akunu_py.stats import Round

MAX_PLANNED_TOKENS: Final = 32
"""The most draft tokens of a planned round: the buffer's size if no number is given."""

_TIE: Final = 1e-9


class Situation(NamedTuple):
    """What a draft is planned for.

    Attributes:
        context: tokens in the cache.
        limit: the most draft tokens that fit.
        replayed: tokens that the forward computes again, whatever the draft.
        pipelined: whether a single step is in flight. If so, no draft continues the pipeline; any
            other stops it, and the loop asks again, with a new proposal, once the step is done.
    """

    context: int
    limit: int
    replayed: int = 0
    pipelined: bool = False


class Planner(Protocol):
    """Chooses the length of drafts. Never raises, whatever a drafter proposes.

    Attributes:
        saving: the part of a step that the draft planned last is expected to save for each token.
    """

    saving: float

    def begin(self) -> None:
        """Starts a request."""

    def should_propose(self, *, pipelined: bool) -> bool:
        """Whether to ask the drafter for a proposal now; if not, the round has no draft.

        Args:
            pipelined: whether a single step is in flight.
        """

    def pipeline_gain(self, context: int) -> float:
        """How much time is gained if the next single step is submitted before the result of this
        one is known, in steps.

        Asked while a round without a draft is in flight. If it is negative, it is better to wait
        for the result: the next round may then verify a draft that follows it.

        Args:
            context: tokens in the cache, those of this round included.
        """

    def choose(self, draft: Draft, now: Situation) -> int:
        """How many tokens of a draft to verify: at most its length and what fits.

        If the draft has probabilities, its tokens are hidden and as many as fit, because they must
        not decide; there may be fewer to verify.
        """

    def plan(self, draft: Draft, prospects: Prospects, drawn: int, now: Situation) -> DrawPlan:
        """How to go on with a draft of a `DrawingDrafter`; asked again after every draw.

        Args:
            draft: what is copied and drawn so far.
            prospects: what the drafter could add to it.
            drawn: how many of its tokens are those up to the last one that was drawn; 0 if none
                was.
            now: as for `choose`.
        """

    def observe(self, outcome: Round) -> None:
        """Learns from a round; called before the next proposal."""

    def observe_drafting(self, seconds: float, *, drawn: int = 0, unread: int = 0) -> None:
        """Learns how long drafting took.

        Args:
            seconds: of a draw, or of a proposal that led to no draft.
            drawn: how many tokens were drawn; 0 for a proposal.
            unread: how many tokens were read before the one that the draw began with.
        """


class FixedPlanner:
    """Verifies as many tokens as the drafter suggests, up to a number: `--num-draft-tokens N`.

    Args:
        num_draft_tokens: that number.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self.saving = math.inf

    def begin(self) -> None:
        pass

    def should_propose(self, *, pipelined: bool) -> bool:
        return True

    def pipeline_gain(self, context: int) -> float:
        return 0.0

    def choose(self, draft: Draft, now: Situation) -> int:
        suggested_length = len(draft) if draft.suggested_length is None else draft.suggested_length
        return max(0, min(self._num_draft_tokens, now.limit, len(draft), suggested_length))

    def plan(self, draft: Draft, prospects: Prospects, drawn: int, now: Situation) -> DrawPlan:
        if drawn:
            return DrawPlan(len(draft))
        kept = self.choose(draft, now)
        wanted = min(self._num_draft_tokens, now.limit) - kept
        return DrawPlan(kept, max(0, min(wanted, len(prospects.accept_probs))))

    def observe(self, outcome: Round) -> None:
        pass

    def observe_drafting(self, seconds: float, *, drawn: int = 0, unread: int = 0) -> None:
        pass


class DraftPlanner:
    """Takes the length that promises the most tokens per second; 0 if none beats plain decoding.

    It outlives requests: what it learns of acceptance and costs holds for the next one too. While
    no length pays, it still compares the drafts that it declines with what is emitted, so it
    notices when a text becomes predictable.

    Args:
        costs: what forwards cost on this machine. Planners may share live costs, made for one
            token more than `MAX_PLANNED_TOKENS`.
        acceptance: what was learnt of drafts, to share with planners of other requests.

    Attributes:
        probes: chooses lengths to learn what they cost.
    """

    def __init__(
        self,
        costs: CostCurve | LiveCosts,
        acceptance: AcceptanceModel | None = None,
    ) -> None:
        if not isinstance(costs, LiveCosts):
            costs = LiveCosts(costs, MAX_PLANNED_TOKENS + 1)
        self._costs = costs
        self._replays = False  # whether a rejection makes the next forward compute tokens again
        self._acceptance = acceptance or AcceptanceModel()
        self._declined_draft = DeclinedDraft(self._acceptance)
        self._backoff = ProposalBackoff()
        self.probes = Probes()
        self._pipeline_gain = PipelineGain()
        self._draws = DrawPlanner()
        self._proposal_s = RunningMean()
        self._context = 0
        self._after_step = False
        self.saving = 0.0

    def begin(self) -> None:
        self._backoff.begin()
        self.probes.begin()
        self._declined_draft.begin()
        self._draws.begin_request()
        self._after_step = False

    def should_propose(self, *, pipelined: bool) -> bool:
        cost = self._proposal_s.value / self._costs.decode_s(self._context)
        should = self._backoff.should_propose(cost, pipelined=pipelined)
        if should and self._after_step:
            self._pipeline_gain.proposed()
        return should

    def pipeline_gain(self, context: int) -> float:
        step = self._costs.decode_s(context)
        unpipelined_s = self._costs.verify_table(context, 1)[0]
        return self._pipeline_gain.of_step(max(0.0, unpipelined_s / step - 1.0))

    def choose(self, draft: Draft, now: Situation) -> int:
        context, replayed, pipelined = now.context, now.replayed, now.pipelined
        limit = min(now.limit, len(draft.tokens), MAX_PLANNED_TOKENS)
        is_probe = self.probes.take_pending(pipelined=pipelined)
        if limit <= 0:
            return 0
        expected = expected_tokens(self._acceptance.accept_probs(draft)[:limit])
        tokens = expected[1:]
        step = self._costs.decode_s(context)
        unpipelined_s, *rounds = self._rounds(expected, now)
        if self._after_step:
            # Learnt even if a step is in flight: it decides whether to pipeline the next one.
            self._pipeline_gain.drafted(step * max(map(truediv, tokens, rounds)))
        # Stopping the pipeline costs a step that is not pipelined, before the next one that is.
        refill = max(0.0, unpipelined_s - step) if pipelined else 0.0
        speeds = [emitted / (cost + refill) for emitted, cost in zip(tokens, rounds, strict=True)]
        plain = 1.0 / (unpipelined_s if replayed else step)
        fastest = max(speeds)
        length = 1 + speeds.index(fastest) if fastest > (1.0 + _TIE) * plain else 0
        best = max(fastest, plain)
        self.saving = 1.0 - plain / best
        rows = replayed + 1
        step_doubt, *doubts = self._costs.doubts(context, rows + length if length else 0)
        known = [step_doubt, *doubts[rows : rows + limit]]
        tried = self.probes.choose([plain, *speeds], known, best)
        if tried is not None:
            length = tried
            if pipelined:
                self.probes.stopped(refill)
            else:
                self.probes.begun(expected[tried] / best)
        elif length:
            self.probes.drafted()
        elif self.probes.due(pipelined=pipelined) or is_probe:
            length = 1 + speeds.index(fastest)
        if not length:
            self._declined_draft.decline(draft.cut(MAX_PLANNED_TOKENS))
            return 0
        self._backoff.drafted()
        return length

    def plan(self, draft: Draft, prospects: Prospects, drawn: int, now: Situation) -> DrawPlan:
        if drawn or prospects.accept_probs:
            step = self._costs.decode_s(now.context)
            longest = min(now.limit, MAX_PLANNED_TOKENS)
            accept_probs = self._acceptance.accept_probs(draft)[:longest]
            guess = [*accept_probs, *prospects.accept_probs][:longest]
            rounds = self._rounds(expected_tokens(guess), now)
            choices = Choices(accept_probs, prospects, rounds, step)
            if drawn:
                return self._draws.go_on(choices, drawn)
            plan = self._draws.begin(choices, replayed=now.replayed > 0, pipelined=now.pipelined)
            if plan.drawn:
                if self._after_step:
                    self._pipeline_gain.drafted(step * self._draws.speed)
                self._backoff.drafted()
                self.saving = max(0.0, 1.0 - 1.0 / self._draws.speed)
                return plan
        return DrawPlan(self.choose(draft, now))

    def observe_drafting(self, seconds: float, *, drawn: int = 0, unread: int = 0) -> None:
        if drawn:
            self._draws.observe(drawn, unread, seconds, self._costs.decode_s(self._context))
        else:
            self._proposal_s.add(seconds)

    def observe(self, outcome: Round) -> None:
        self._after_step = not outcome.draft
        self._context = outcome.context
        self._replays |= outcome.replayed > 0
        self._declined_draft.follow(outcome.tokens)
        if outcome.draft:
            self._acceptance.learn(outcome.draft, outcome.accepted)
        seconds = outcome.seconds or self._costs.decode_s(outcome.context)
        self._draws.earn(seconds)
        self.probes.earn(seconds)
        if outcome.seconds is None:
            return
        if outcome.pipelined:
            self._costs.observe_step(outcome.seconds, outcome.context)
        else:
            size = outcome.replayed + 1 + len(outcome.draft)
            self._costs.observe_round(size, outcome.seconds, outcome.context)

    def _rounds(self, expected: Sequence[float], now: Situation) -> list[float]:
        """Seconds of rounds over 0, 1, 2 ... draft tokens, of which `expected` are emitted."""
        context, replayed = now.context, now.replayed
        first, *rounds = self._costs.verify_table(context, replayed + len(expected))[replayed:]
        if self._replays:
            forwards = self._costs.verify_table(context, MAX_PLANNED_TOKENS + 1)
            again = expected_replays(expected, replayed)
            rounds = [
                cost + _replay_s(forwards, rows, replayed + length)
                for length, (cost, rows) in enumerate(zip(rounds, again, strict=True), start=1)
            ]
        return [first, *rounds]


def _replay_s(forwards: Sequence[float], rows: float, size: int) -> float:
    """Seconds that `rows` tokens to compute again add to the next forward.

    That is a single step or one like this, over `size` draft tokens; the mean of both was better
    than either in `benchmarks/replay_recurrent.py`.

    Args:
        forwards: seconds of forwards over 1, 2 ... tokens.
        rows: how many tokens, on average.
        size: how many tokens follow the known one in this forward.
    """

    def after(tokens: float) -> float:
        whole = min(int(tokens), len(forwards) - 1)
        above = min(whole + 1, len(forwards) - 1)
        return forwards[whole] + (tokens - whole) * (forwards[above] - forwards[whole])

    return (after(rows) - after(0) + after(size + rows) - after(size)) / 2
