"""Replay: what a drafter and a planner would have brought on a text that is already known.

The reference text plays the target (teacher forcing): a round drafts, keeps the drafted tokens
that agree with the reference, and emits one token more, as greedy verification would. Rounds run
as `decode_speculative` runs them, pipelined where nothing is drafted, on a clock that a cost
curve drives. Token ids come in, counts go out; knows nothing of tokenizers, models or real time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.planner import MOST_PLANNED_DRAFTS, Planner, RoundReport

UNIT_COSTS: Final = CostCurve((CostLevel(0, 1.0, ((1, 1.0),)),))
"""Every forward costs the same: a speedup is then the tokens a forward."""

_CONTEXT_GRAIN: Final = 64


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """One request.

    Attributes:
        prompt: its ids.
        reference: the ids that a target would answer with.
        end_tokens: ids that end the answer; drafts are cut after one, as the engine cuts them.
    """

    prompt: Sequence[int]
    reference: Sequence[int]
    end_tokens: frozenset[int] = frozenset()


class RoundShape(NamedTuple):
    """What decides on the time that a round takes.

    Attributes:
        drafted: drafts that it verifies.
        context: tokens in the cache before it.
        pipelined: whether it was submitted before the round before it had ended.
    """

    drafted: int
    context: int
    pipelined: bool

    def seconds(self, curve: CostCurve) -> float:
        """How long it takes where forwards cost what `curve` says."""
        if self.pipelined:
            return curve.decode_s(self.context)
        return curve.verify_s(1 + self.drafted, self.context)


class ReplayRound(NamedTuple):
    """A round, and what came of it."""

    shape: RoundShape
    accepted: int
    emitted: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What the rounds of one or more requests came to.

    Attributes:
        emitted: tokens that the rounds emitted.
        accepted: drafted tokens that stood.
        rounds: how many rounds there were of each shape; contexts are rounded down.
    """

    emitted: int = 0
    accepted: int = 0
    rounds: Counter[RoundShape] = field(default_factory=Counter)

    def __add__(self, other: ReplayResult) -> ReplayResult:
        return ReplayResult(
            self.emitted + other.emitted,
            self.accepted + other.accepted,
            self.rounds + other.rounds,
        )

    @classmethod
    def of(cls, rounds: Iterable[ReplayRound]) -> ReplayResult:
        """Counts some rounds."""
        emitted = accepted = 0
        shapes: Counter[RoundShape] = Counter()
        for done in rounds:
            emitted += done.emitted
            accepted += done.accepted
            grain = done.shape.context // _CONTEXT_GRAIN * _CONTEXT_GRAIN
            shapes[done.shape._replace(context=grain)] += 1
        return cls(emitted, accepted, shapes)

    @property
    def forwards(self) -> int:
        """Forwards of the target, one a round."""
        return self.rounds.total()

    @property
    def drafted(self) -> int:
        """Drafted tokens that were verified."""
        return sum(shape.drafted * count for shape, count in self.rounds.items())

    @property
    def tokens_per_forward(self) -> float:
        """Emitted tokens a forward; 1.0 is plain decoding."""
        return self.emitted / self.forwards if self.rounds else 1.0

    @property
    def mean_accepted(self) -> float:
        """Accepted tokens a forward."""
        return self.accepted / self.forwards if self.rounds else 0.0

    @property
    def mean_drafted(self) -> float:
        """Drafted tokens a forward."""
        return self.drafted / self.forwards if self.rounds else 0.0

    @property
    def acceptance(self) -> float:
        """The share of drafted tokens that stood; 0.0 where none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def predicted_speedup(self, curve: CostCurve) -> float:
        """The time of as many pipelined single steps, over that of the rounds.

        Forwards alone are counted: what drafting takes, and the text's way out, are not.
        """
        if not self.rounds:
            return 1.0
        spent = sum(count * shape.seconds(curve) for shape, count in self.rounds.items())
        contexts = sum(count * shape.context for shape, count in self.rounds.items())
        return self.emitted * curve.decode_s(contexts // self.forwards) / spent


def replay_rounds(
    drafter: Drafter,
    case: ReplayCase,
    planner: Planner,
    *,
    curve: CostCurve = UNIT_COSTS,
    limit: int = MOST_PLANNED_DRAFTS,
) -> Iterator[ReplayRound]:
    """Replays one request, a round at a time.

    The drafter is not told where the reference ends: what it drafts beyond counts as drafted.

    Args:
        drafter: guesses.
        case: the request.
        planner: says how much of a guess to verify.
        curve: what the planner is told that rounds took.
        limit: the most drafts that a round may verify.
    """
    reference, trimmer = case.reference, DraftTrimmer(case.end_tokens)
    drafter.begin(case.prompt)
    planner.begin()
    position = read = 0

    def propose(*, pipelined: bool) -> Draft:
        nonlocal read
        if not planner.should_propose(pipelined=pipelined):
            return NO_DRAFT
        drafter.extend(reference[read:position])
        read = position
        draft = trimmer.trim(drafter.propose(limit))
        if not draft:
            return NO_DRAFT
        context = len(case.prompt) + position - 1
        length = planner.choose(draft, context=context, limit=limit, pipelined=pipelined)
        return draft.cut(length) if length else NO_DRAFT

    draft, pipelined = propose(pipelined=False), False
    upcoming = NO_DRAFT
    while position < len(reference):
        shape = RoundShape(len(draft), len(case.prompt) + position - 1, pipelined)
        should_pipeline = not (draft or upcoming) and planner.should_pipeline(shape.context + 1)
        accepted = _standing(draft.tokens, reference[position : position + len(draft)])
        tokens = reference[position : position + accepted + 1]
        drafter.feedback(draft, accepted)
        seconds = shape.seconds(curve)
        planner.observe(RoundReport(draft, tokens, accepted, shape.context, seconds, pipelined))
        position += len(tokens)
        upcoming = propose(pipelined=should_pipeline)
        yield ReplayRound(shape, accepted, len(tokens))
        if should_pipeline:
            draft, pipelined = NO_DRAFT, True
        else:
            draft, pipelined, upcoming = upcoming, False, NO_DRAFT
    drafter.extend(reference[read:position])


def replay_case(
    drafter: Drafter,
    case: ReplayCase,
    planner: Planner,
    *,
    curve: CostCurve = UNIT_COSTS,
    limit: int = MOST_PLANNED_DRAFTS,
) -> ReplayResult:
    """Replays one request and counts; see `replay_rounds`."""
    rounds = replay_rounds(drafter, case, planner, curve=curve, limit=limit)
    return ReplayResult.of(rounds)


def replay(
    make: Callable[[], Drafter],
    cases: Iterable[ReplayCase],
    planner: Planner,
    *,
    curve: CostCurve = UNIT_COSTS,
    limit: int = MOST_PLANNED_DRAFTS,
) -> ReplayResult:
    """Replays requests under one planner, each on the drafter that `make` gives for it."""
    rounds = (
        done
        for case in cases
        for done in replay_rounds(make(), case, planner, curve=curve, limit=limit)
    )
    return ReplayResult.of(rounds)


def repeated_share(case: ReplayCase, length: int = 4) -> float:
    """The share of a reference's n-grams that stood before, in the prompt or in itself."""
    tokens = [*case.prompt, *case.reference]
    first = max(0, len(case.prompt) - length + 1)
    seen: set[tuple[int, ...]] = set()
    repeated = total = 0
    for start in range(len(tokens) - length + 1):
        gram = tuple(tokens[start : start + length])
        if start >= first:
            total += 1
            repeated += gram in seen
        seen.add(gram)
    return repeated / total if total else 0.0


def _standing(drafts: Sequence[int], wanted: Sequence[int]) -> int:
    accepted = 0
    for token, right in zip(drafts, wanted, strict=False):
        if token != right:
            break
        accepted += 1
    return accepted
