"""Planners: how many tokens of a draft the next round verifies.

`DraftPlanner` picks the number (perhaps 0) that promises the most tokens per second here;
`FixedPlanner` always picks the same number. Neither changes what is emitted, only when.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import truediv
from typing import Final, NamedTuple, Protocol

from akunu_py.drafting.acceptance import AcceptanceRates
from akunu_py.drafting.base import FORCED, Draft
from akunu_py.drafting.chain import MOST_RISE, Chain
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.costs import LiveCosts
from akunu_py.planning.theory import TIE, expected_replays, expected_tokens, replay_s
from akunu_py.planning.trials import (
    RATE,
    WORTH_TRYING,
    DeclinedDraft,
    GuessGain,
    Pace,
    PipelineGain,
    Probes,
)
from akunu_py.rounds import Round

PROPOSAL_SHARE: Final = 0.02
"""The fraction of all time that proposals without a draft may take."""

USUAL_TOKEN_COST: Final = 0.12
"""What verifying one draft token usually costs, in forward passes: a compromise between the
measured chips, for planners that do not know the costs."""

_UNSURE: Final = 0.5
"""Guesses that are not expected to pay are tried only if a copy is less likely to be right than
this."""


class Situation(NamedTuple):
    """The situation of a draft: the tokens in the cache, and the most draft tokens that fit.

    The forward pass computes `replayed` tokens again, whatever the draft. If a single step is in
    flight (`pipelined`), length 0 continues the pipeline. Any other length stops it, and the loop
    asks again, with a new proposal, once the step is done. A network's guesses took `guessing_s`
    seconds.
    """

    context: int
    limit: int
    replayed: int = 0
    pipelined: bool = False
    guessing_s: float = 0.0


class Planner(Protocol):
    """Chooses the length of drafts. It never raises, whatever a drafter proposes. A class that
    derives from this may leave out what it does not need.

    `saving` is the fraction of a step that the last planned draft is expected to save per token.
    """

    saving: float

    def begin(self) -> None:
        """Starts a request."""
        return

    def should_propose(self) -> bool:
        """Whether to ask the drafter for a proposal now; if not, the round has no draft."""

    def pipeline_gain(self, context: int) -> float:
        """The time gained, in steps, by submitting the next single step before the result of the
        one in flight is known; negative if it is better to wait for a draft."""

    def should_guess(self, copy: Draft, now: Situation, chain: Chain) -> bool:
        """Whether a network's guess is worth its time, given the copy."""
        return not copy

    def goes_on(
        self, guesses: Draft, with_copy: Draft, next_prob: float, now: Situation, chain: Chain
    ) -> bool:
        """Whether another guess is worth its time; `next_prob` is its probability to be right if
        the others are. Without it, the round may verify `with_copy`: these, and the copy after
        them."""
        return True

    def best_of(self, drafts: Sequence[Draft], now: Situation) -> Draft:
        """The best of one or more drafts."""
        return drafts[0]

    def choose(self, draft: Draft, now: Situation) -> int:
        """How many tokens of a draft to verify: at most its length, and as many as fit.

        For a draft with probabilities, the tokens are hidden, because they must not decide, and the
        draft shown is as long as fits; the real one may be shorter.
        """

    def observe(self, outcome: Round) -> None:
        """Learns from a round; called before the next proposal."""
        return

    def observe_proposal(self, seconds: float) -> None:
        """Learns how long a proposal without a draft took."""
        return


class FixedPlanner(Planner):
    """Verifies up to a fixed number of tokens: `--num-draft-tokens N`.

    If the drafter estimates probabilities, it verifies only tokens that are worth their usual cost:
    as long as the next token's gain per cost is above the draft's average so far.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self.saving = math.inf

    def should_propose(self) -> bool:
        return True

    def pipeline_gain(self, context: int) -> float:
        return 0.0

    def should_guess(self, copy: Draft, now: Situation, chain: Chain) -> bool:
        return not copy.accept_probs or copy.accept_probs[0] < chain.rate(0)

    def goes_on(
        self, guesses: Draft, with_copy: Draft, next_prob: float, now: Situation, chain: Chain
    ) -> bool:
        made = len(guesses)
        if len(with_copy) > made and with_copy.accept_probs[made] >= next_prob:
            return False
        return made < self._num_draft_tokens and self.choose(guesses, now) == made

    def best_of(self, drafts: Sequence[Draft], now: Situation) -> Draft:
        most = self._num_draft_tokens
        return max(drafts, key=lambda one: expected_tokens(one.accept_probs[:most])[-1])

    def choose(self, draft: Draft, now: Situation) -> int:
        length = max(0, min(self._num_draft_tokens, now.limit, len(draft)))
        reach, gain, cost = 1.0, 1.0, 1.0
        for position, prob in enumerate(draft.accept_probs[:length]):
            reach *= prob
            if reach * cost < USUAL_TOKEN_COST * gain:
                return position
            gain += reach
            cost += USUAL_TOKEN_COST
        return length


class DraftPlanner:
    """Picks the length that promises the most tokens per second; 0 if none beats plain decoding.

    It outlives requests, and may share costs and rates with planners of other requests. Live costs
    are made for one token more than `MAX_PLANNED_TOKENS`.
    """

    def __init__(self, costs: CostCurve | LiveCosts, rates: AcceptanceRates | None = None) -> None:
        if not isinstance(costs, LiveCosts):
            costs = LiveCosts(costs, MAX_PLANNED_TOKENS + 1)
        self._costs = costs
        self._replays = False  # whether the next pass computes tokens again after a rejection
        self._rates = rates or AcceptanceRates()
        self._declined = DeclinedDraft(self._rates)
        self._probes = Probes()
        self._pipeline_gain = PipelineGain()
        self._proposal_s = 0.0
        self._empty_proposals = self._skips = 0
        self._context = 0
        self._after_step = False
        self._guess_gains: dict[str, GuessGain] = {}
        self._asked: GuessGain | None = None  # of the network that guesses next
        # The guesses that may have brought nothing, and their seconds.
        self._in_vain: tuple[GuessGain, float] | None = None
        self._pace = Pace()  # across requests: the next one is mostly of the same kind
        self._planned_s = 0.0  # of the next round and its guesses; 0 if no draft was considered
        self.saving = 0.0

    @property
    def is_probe(self) -> bool:
        """Whether the last length was chosen to learn its cost."""
        return self._probes.worth_s is not None

    def begin(self) -> None:
        self._empty_proposals = self._skips = 0
        self._probes.begin()
        self._declined.begin()
        for gain in self._guess_gains.values():
            gain.begin()
        self._after_step = False
        self._planned_s, self._in_vain = 0.0, None

    def should_propose(self) -> bool:
        if self._skips:
            self._skips -= 1
            return False
        # The longer proposals take, and the more of them were empty, the rarer they become.
        steps = self._proposal_s / (PROPOSAL_SHARE * self._costs.decode_s(self._context))
        self._skips = min(int(steps), self._empty_proposals)
        self._empty_proposals += 1
        if self._after_step:
            self._pipeline_gain.proposed()
        return True

    def pipeline_gain(self, context: int) -> float:
        step = self._costs.decode_s(context)
        return self._pipeline_gain.of_step(self._costs.verify_s(1, context) / step - 1.0)

    def should_guess(self, copy: Draft, now: Situation, chain: Chain) -> bool:
        """Compares the copy alone with a guess, which the copy continues if it agrees, and which is
        drafted in its place if not. If no copy is certain, guesses are tried now and then. A
        network reads the prompt for its first guess, but only once that is worth the time."""
        probs = self._rates.accept_probs(copy)[: min(now.limit, MAX_PLANNED_TOKENS)]
        step = self._costs.decode_s(now.context)
        expected = expected_tokens(probs or [0.0])
        alone, *rounds = self._rounds(expected, now)
        guessed = self._guess_gains.get(chain.name)
        if guessed is None:
            first = 1.0 + chain.rate(0)
            guessed = GuessGain(first, (rounds[0] + chain.guess_s) / step)
            self._guess_gains[chain.name] = guessed
        plain = alone if now.replayed else step
        copies = [(1.0, plain), *zip(expected[1:], rounds, strict=True)]
        worth = self._worth(copies, step)
        gains = [tokens * worth - cost for tokens, cost in copies]
        length = gains.index(max(gains[1:]), 1)
        copied = probs[0] if probs else 0.0
        tokens, seconds = guessed.tokens, guessed.steps * step
        if copied:
            # If both agree, the round emits the guess, the model's own token and the copy's rest.
            agreed = min(copied, chain.rate(0))
            both = 2.0 + (expected[length] - expected[1]) / copied
            tokens += agreed * (both - tokens)
            seconds += agreed * (rounds[length - 1] + chain.guess_s - seconds)
        self.saving = (tokens * worth - seconds - max(gains)) / (tokens * step)
        if self.saving <= TIE and not (copied < _UNSURE and guessed.is_tried(step, chain.guess_s)):
            return False
        if not chain.is_worth_reading(max(self.saving, WORTH_TRYING) * step):
            return False
        self._asked = guessed
        if now.pipelined:
            self._skips = 0  # the loop asks again once the step is done
        return True

    def goes_on(
        self, guesses: Draft, with_copy: Draft, next_prob: float, now: Situation, chain: Chain
    ) -> bool:
        """Whether some number of further guesses is faster, if all are as likely as the next."""
        made, most = len(guesses), min(now.limit, MAX_PLANNED_TOKENS)

        def rounds(probs: Sequence[float]) -> list[tuple[float, float]]:
            expected = expected_tokens(probs[:most])
            return list(zip(expected, self._rounds(expected, now), strict=True))

        copies = [
            (tokens, cost + made * chain.guess_s)
            for tokens, cost in rounds(with_copy.accept_probs)[made:]
        ]
        worth = self._worth(copies, self._costs.decode_s(now.context))
        best = max(tokens * worth - seconds for tokens, seconds in copies)
        further = rounds([*guesses.accept_probs, *[next_prob] * (most - made)])
        return any(
            tokens * worth - cost - length * chain.guess_s > best
            for length, (tokens, cost) in enumerate(further[made + 1 :], start=made + 1)
        )

    def best_of(self, drafts: Sequence[Draft], now: Situation) -> Draft:
        def speed(draft: Draft) -> float:
            expected = expected_tokens(self._rates.accept_probs(draft)[:MAX_PLANNED_TOKENS])
            return float(max(map(truediv, expected, self._rounds(expected, now))))

        if now.guessing_s and self._asked is not None:
            self._asked.made += 1
            self._in_vain = self._asked, now.guessing_s
        return max(drafts, key=speed)

    def choose(self, draft: Draft, now: Situation) -> int:
        limit = min(now.limit, len(draft.tokens), MAX_PLANNED_TOKENS)
        if limit <= 0:
            return 0
        if draft.source != FORCED:
            self._in_vain = None
        expected = expected_tokens(self._rates.accept_probs(draft)[:limit])
        step = self._costs.decode_s(now.context)
        alone, *rounds = self._rounds(expected, now)
        if self._after_step:
            # Learnt even with a step in flight, because it decides whether to pipeline the next.
            paid = (cost + now.guessing_s for cost in rounds)
            self._pipeline_gain.drafted(step * max(map(truediv, expected[1:], paid)))
        # Stopping the pipeline costs one step that is not pipelined.
        refill = max(0.0, alone - step) if now.pipelined else 0.0
        plain = 1.0 / (alone if now.replayed else step)
        costs = (cost + refill for cost in rounds)
        speeds = [plain * (1.0 + TIE), *map(truediv, expected[1:], costs)]
        length = speeds.index(max(speeds))
        if (guessed := self._guess_gains.get(draft.source)) is not None:
            spent = (rounds[length - 1] if length else alone) + now.guessing_s
            guessed.learn(expected[length], spent / step)
        self.saving = 1.0 - plain / speeds[length]
        rows = now.replayed + 1
        doubts = self._costs.doubts(now.context, rows + length if length else 0)
        doubts = [doubts[0], *doubts[rows + 1 : rows + 1 + limit]]
        stop_s = refill if now.pipelined else None
        longer = min(2 * length, limit)
        if self._costs.has_observed(rows + longer, now.context):
            longer = length
        length = self._probes.choose(length, longer, speeds, doubts, expected, stop_s=stop_s)
        if not now.pipelined:  # otherwise, the step in flight is next
            self._planned_s = (rounds[length - 1] if length else alone) + now.guessing_s
        if length:
            self._empty_proposals = self._skips = 0
        else:
            self._declined.decline(draft.cut(MAX_PLANNED_TOKENS))
        return length

    def observe_proposal(self, seconds: float) -> None:
        usual = self._proposal_s or seconds
        self._proposal_s = usual + RATE * (min(seconds, MOST_RISE * usual) - usual)

    def observe(self, outcome: Round) -> None:
        self._after_step = not outcome.draft
        self._context = outcome.context
        self._replays |= outcome.replayed > 0
        self._declined.follow(outcome.tokens)
        if self._in_vain is not None:  # a grammar allowed none of the guesses
            guessed, guessing_s = self._in_vain
            guessed.learn(1.0, 1.0 + guessing_s / self._costs.decode_s(outcome.context))
            self._in_vain = None
        planned_s = self._planned_s or self._costs.decode_s(outcome.context)
        self._pace.learn(len(outcome.tokens), planned_s)
        self._planned_s = 0.0
        if outcome.draft:
            self._rates.learn_draft(outcome.draft, outcome.accepted)
        self._probes.earn(outcome.seconds or self._costs.decode_s(outcome.context))
        if outcome.seconds is not None:
            rows = 0 if outcome.pipelined else outcome.replayed + 1 + len(outcome.draft)
            self._costs.observe(rows, outcome.seconds, outcome.context)

    def _worth(self, rounds: Sequence[tuple[float, float]], step_s: float) -> float:
        """The seconds that one more token in this round is worth: what it would take to emit it
        later. If later rounds are like this one, that is the time per token of the best of these
        `rounds`, given as tokens and seconds; if they are like recent ones, it is that of these,
        perhaps of a copy. Nobody knows which, so it is the mean of both."""
        return 0.5 * (self._pace.token_s(step_s) + min(cost / tokens for tokens, cost in rounds))

    def _rounds(self, expected: Sequence[float], now: Situation) -> list[float]:
        context, replayed = now.context, now.replayed
        first, *rounds = self._costs.verify_table(context, replayed + len(expected))[replayed:]
        if self._replays:
            forwards = self._costs.verify_table(context, MAX_PLANNED_TOKENS + 1)
            again = expected_replays(expected, replayed)
            rounds = [
                cost + replay_s(forwards, rows, replayed + length)
                for length, (cost, rows) in enumerate(zip(rounds, again, strict=True), start=1)
            ]
        return [first, *rounds]
