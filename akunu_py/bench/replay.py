"""Replay: predicts how much faster a known text is generated with a drafter and a planner.

The reference text plays the target (teacher forcing): the engine's own decoding loop runs on a
`KnownAnswer`, whose clock is a cost curve. Token ids come in, counts go out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.planner import Planner
from akunu_py.round import Round
from akunu_py.tokens import common_prefix_length

UNIT_COSTS: Final = CostCurve((CostLevel(0, 1.0, ((1, 1.0),)),))
"""Every forward pass costs the same, so the speedup is the number of tokens per forward pass."""

_CONTEXT_GRAIN: Final = 64


@dataclass(frozen=True, slots=True)
class ReplayCase:
    """A request, and the ids of its answer. Drafts are cut after end tokens, as in the engine."""

    prompt: Sequence[int]
    reference: Sequence[int]
    end_tokens: frozenset[int] = frozenset()


class RoundShape(NamedTuple):
    """Everything that decides how long a round takes.

    `context` counts the tokens in the cache before it; a pipelined round was submitted before the
    previous one ended; `replayed` tokens had to be computed again.
    """

    drafted: int
    context: int
    pipelined: bool
    replayed: int = 0

    def seconds(self, curve: CostCurve) -> float:
        if self.pipelined:
            return curve.decode_s(self.context)
        return curve.verify_s(self.replayed + 1 + self.drafted, self.context)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The emitted tokens, the accepted ones, and the rounds of each shape of some requests.

    The contexts of the shapes are rounded down.
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
    def of(cls, rounds: Iterable[Round]) -> ReplayResult:
        """Counts some rounds; an end token counts as emitted."""
        emitted = accepted = 0
        shapes: Counter[RoundShape] = Counter()
        for round_ in rounds:
            emitted += len(round_.tokens) + (round_.end_token is not None)
            accepted += round_.accepted
            context = round_.context // _CONTEXT_GRAIN * _CONTEXT_GRAIN
            shape = RoundShape(round_.drafted, context, round_.pipelined, round_.replayed)
            shapes[shape] += 1
        return cls(emitted, accepted, shapes)

    @property
    def forwards(self) -> int:
        return self.rounds.total()

    @property
    def drafted(self) -> int:
        return sum(shape.drafted * count for shape, count in self.rounds.items())

    @property
    def tokens_per_forward(self) -> float:
        return self.emitted / self.forwards if self.rounds else 1.0

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    def predicted_speedup(self, curve: CostCurve) -> float:
        """The time of the same tokens in pipelined steps over that of the rounds; forward passes
        only."""
        if not self.rounds:
            return 1.0
        spent = sum(count * shape.seconds(curve) for shape, count in self.rounds.items())
        contexts = sum(count * shape.context for shape, count in self.rounds.items())
        return self.emitted * curve.decode_s(contexts // self.forwards) / spent


class KnownAnswer:
    """A target for the decoding loop that reads an answer instead of computing it.

    Its passes take as long as the curve says and verify up to `limit` drafted tokens.
    """

    can_pipeline = True

    replayed = 0

    def __init__(self, case: ReplayCase, curve: CostCurve, limit: int) -> None:
        self._answer = case.reference
        self._start = len(case.prompt) - 1
        self._curve = curve
        self._limit = limit
        self.length = self._start

    @property
    def room(self) -> int:
        return 1 + len(self._answer) + self._limit

    def draft_limit(self, tokens_wanted: int) -> int:
        """Independent of where the answer ends: tokens drafted beyond its end count too."""
        return self._limit if tokens_wanted > 0 else 0

    def submit(self, known: int, draft: Draft) -> _PendingRound:
        return self._submit(draft, pipelined=False)

    def submit_step_after(self, pending: _PendingRound) -> _PendingRound:
        return self._submit(NO_DRAFT, pipelined=True)

    def read(self, pending: _PendingRound) -> Round:
        draft, position = pending.draft, pending.context - self._start
        answer = self._answer[position : position + len(draft)]
        accepted = common_prefix_length(draft.tokens, answer)
        tokens = tuple(self._answer[position : position + accepted + 1])
        shape = RoundShape(len(draft), pending.context, pending.pipelined)
        return Round(
            tokens,
            draft,
            accepted,
            pending.context,
            pending.pipelined,
            shape.seconds(self._curve),
        )

    def rollback(self, length: int) -> None:
        self.length = length

    def note_pause(self, seconds: float) -> None:
        """The curve knows how long a round takes."""

    def _submit(self, draft: Draft, *, pipelined: bool) -> _PendingRound:
        context = self.length
        self.length += 1 + len(draft)
        return _PendingRound(context, draft, pipelined)


@dataclass(slots=True)
class _PendingRound:
    context: int
    draft: Draft
    pipelined: bool


def replay_rounds(
    drafter: Drafter,
    case: ReplayCase,
    planner: Planner,
    *,
    curve: CostCurve = UNIT_COSTS,
    limit: int = MAX_PLANNED_TOKENS,
) -> Iterator[Round]:
    """Replays one request, a round at a time, in the engine's own decoding loop."""
    trimmer = DraftTrimmer(case.end_tokens)
    session = DraftSession(drafter, planner, trimmer, num_draft_tokens=limit)
    session.begin(case.prompt)
    if not case.reference:
        return
    known = case.prompt[-1] if case.prompt else 0
    limits = Limits(len(case.reference), frozenset())
    yield from run_alone(KnownAnswer(case, curve, limit), session, known, limits)


def replay(
    make: Callable[[], Drafter],
    cases: Iterable[ReplayCase],
    planner: Planner,
    *,
    curve: CostCurve = UNIT_COSTS,
    limit: int = MAX_PLANNED_TOKENS,
) -> ReplayResult:
    """Replays requests with one planner, each with the drafter that `make` returns."""
    rounds = (
        done
        for case in cases
        for done in replay_rounds(make(), case, planner, curve=curve, limit=limit)
    )
    return ReplayResult.of(rounds)


def repeated_share(case: ReplayCase) -> float:
    """The share of a reference's 4-grams that occurred before, in the prompt or in itself."""
    length = 4
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
