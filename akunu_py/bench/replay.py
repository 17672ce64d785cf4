"""`bench replay`: predicts how much faster known texts are generated with drafters and planners;
nothing is measured.

The reference text plays the target (teacher forcing): the engine's own decoding loop runs on a
`KnownAnswer`, whose clock is a cost curve. Token ids come in, counts go out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from akunu_py.bench.measurement import Progress, markdown_table
from akunu_py.calibration.cost_store import NamedCurve
from akunu_py.decoding.draft_session import DraftSession, DraftTrimmer
from akunu_py.decoding.loop import Limits, run_alone
from akunu_py.drafting import AUTO_DRAFTER, MAKERS
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import NO_DRAFT, Draft, Drafter
from akunu_py.memory.projects import Memory, ProjectTexts
from akunu_py.memory.segment import Segment
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.planner import DraftPlanner, FixedPlanner, Planner
from akunu_py.rounds import Round
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

    def submit(self, known: int, draft: Draft) -> Round:
        return self._submit(draft, pipelined=False)

    def submit_step_after(self, pending: Round) -> Round:
        return self._submit(NO_DRAFT, pipelined=True)

    def read(self, pending: Round) -> Round:
        return pending

    def rollback(self, length: int) -> None:
        self.length = length

    def note_pause(self, seconds: float) -> None:
        """The curve knows how long a round takes."""

    def _submit(self, draft: Draft, *, pipelined: bool) -> Round:
        context, position = self.length, self.length - self._start
        self.length += 1 + len(draft)
        answer = self._answer[position : position + 1 + len(draft)]
        accepted = common_prefix_length(draft.tokens, answer)
        seconds = RoundShape(len(draft), context, pipelined).seconds(self._curve)
        return Round(tuple(answer[: accepted + 1]), draft, accepted, context, pipelined, seconds)


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


FindDrafter = Callable[[str], Callable[[], Drafter]]
"""Takes a drafter's name; returns a function that makes one for each request."""

_NO_MEMORIES: Final[Mapping[str, Segment]] = MappingProxyType({})
_HEADS: Final = (
    "", "predicted speedup", "tokens per pass", "forward passes", "drafted", "accepted",
    "acceptance",
)  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """A drafter, and the maximum number of draft tokens per round; None leaves that to the planner.
    With `recalls`, it also drafts from the memory of a project.
    """

    drafter: str
    num_draft_tokens: int | None = None
    recalls: bool = field(default=False, kw_only=True)

    def __str__(self) -> str:
        name = f"{self.drafter} with memory" if self.recalls else self.drafter
        if self.num_draft_tokens is None:
            return f"{name} + planner"
        return f"{name}, num_draft_tokens={self.num_draft_tokens}"


@dataclass(frozen=True)
class ReplayRow:
    """The result of a policy on one set of requests, with the costs of one curve."""

    kind: str
    policy: Policy
    curve: NamedCurve
    result: ReplayResult

    @property
    def speedup(self) -> float:
        return self.result.predicted_speedup(self.curve.curve)

    @property
    def figures(self) -> tuple[str, ...]:
        result = self.result
        return (
            f"{self.speedup:.2f}x",
            f"{result.tokens_per_forward:.2f}",
            f"{result.forwards:,}",
            f"{result.drafted:,}",
            f"{result.accepted:,}",
            f"{result.acceptance:.0%}",
        )

    def as_json(self) -> dict[str, Any]:
        result = self.result
        return {
            "set": self.kind,
            "drafter": self.policy.drafter,
            "num_draft_tokens": self.policy.num_draft_tokens,
            "memory": self.policy.recalls,
            "costs": self.curve.name,
            "forwards": result.forwards,
            "emitted": result.emitted,
            "drafted": result.drafted,
            "accepted": result.accepted,
            "acceptance": round(result.acceptance, 4),
            "tokens_per_forward": round(result.tokens_per_forward, 4),
            "predicted_speedup": round(self.speedup, 4),
        }


@dataclass(frozen=True)
class ReplayReport:
    """The results of replaying sets of requests, which the tokenizer of a model encoded."""

    sets: Mapping[str, Sequence[ReplayCase]]
    curves: Sequence[NamedCurve]
    rows: Sequence[ReplayRow]
    tokenizer: str

    def as_json(self) -> dict[str, Any]:
        return {
            "note": "Nothing here was measured: speedups are predictions from cost curves.",
            "tokenizer": self.tokenizer,
            "sets": {
                kind: {
                    "requests": len(cases),
                    "reference_tokens": sum(len(case.reference) for case in cases),
                    "repeated_share": round(_repeated(cases), 4),
                }
                for kind, cases in self.sets.items()
            },
            "costs": [curve.as_json() for curve in self.curves],
            "rows": [row.as_json() for row in self.rows],
        }

    @property
    def heading(self) -> str:
        return "Nothing here was measured: speedups are predicted"

    def markdown(self) -> list[str]:
        parts: list[str] = []
        for kind, cases in self.sets.items():
            tokens = sum(len(case.reference) for case in cases)
            requests = "1 request" if len(cases) == 1 else f"{len(cases):,} requests"
            parts += [
                f"{kind}: {requests}, {tokens:,} tokens of known answers, "
                f"{_repeated(cases):.0%} of their 4-grams occur earlier in the request",
                self._table(kind),
            ]
        parts += ["Costs:", "\n".join(f"- {curve}" for curve in self.curves)]
        if len(self.curves) > 1:
            parts.append("--costs NAME replays with one of them, and also lists passes and drafts.")
        return parts

    def _table(self, kind: str) -> str:
        rows = [row for row in self.rows if row.kind == kind]
        if len(self.curves) == 1:
            return markdown_table(_HEADS, [(str(row.policy), *row.figures) for row in rows])
        heads = [curve.name for curve in self.curves]
        alike = [rows[at : at + len(heads)] for at in range(0, len(rows), len(heads))]
        return markdown_table(
            ["predicted speedup", *heads],
            [(str(same[0].policy), *(row.figures[0] for row in same)) for same in alike],
        )


def replay_policy(
    policy: Policy,
    cases: Sequence[ReplayCase],
    curve: CostCurve,
    *,
    keeps: bool = False,
    memory: Sequence[Segment] = (),
    drafters: FindDrafter = MAKERS.__getitem__,
) -> ReplayResult:
    """Replays requests with the costs of a curve.

    What `auto` and planners learn is kept from request to request, as in an engine; the text of
    earlier requests only with `keeps`. A policy that recalls drafts from `memory`.
    """
    fixed = policy.num_draft_tokens
    limit = MAX_PLANNED_TOKENS if fixed is None else fixed
    planner = DraftPlanner(curve) if fixed is None else FixedPlanner(limit)
    if policy.drafter == AUTO_DRAFTER:
        projects = {"": ProjectTexts(memory)} if policy.recalls else {}
        auto = AutoDrafter()
        Memory(projects, remembers=keeps).lend(auto, None)

        def make() -> Drafter:
            auto.end()
            return auto

    else:
        make = drafters(policy.drafter)
    return replay(make, cases, planner, curve=curve, limit=limit)


def replay_policies(
    sets: Mapping[str, Sequence[ReplayCase]],
    policies: Sequence[Policy],
    curves: Sequence[NamedCurve],
    *,
    keeps: bool = False,
    progress: Progress | None = None,
    memories: Mapping[str, Segment] = _NO_MEMORIES,
    drafters: FindDrafter = MAKERS.__getitem__,
) -> Iterator[ReplayRow]:
    """A row for each set, policy and curve; for sets with a memory, `auto` without and with it.

    A fixed num_draft_tokens is replayed once for all curves: its rounds do not depend on costs.
    """
    replays = [
        (kind, replace(policy, recalls=recalls), group)
        for kind in sets
        for policy in policies
        for recalls in sorted({False, kind in memories and policy.drafter == AUTO_DRAFTER})
        for group in (
            [[curve] for curve in curves] if policy.num_draft_tokens is None else [list(curves)]
        )
    ]
    for done, (kind, policy, group) in enumerate(replays):
        if progress:
            progress(done, len(replays))
        memory = (memories[kind],) if policy.recalls else ()
        result = replay_policy(
            policy, sets[kind], group[0].curve, keeps=keeps, memory=memory, drafters=drafters
        )
        for curve in group:
            yield ReplayRow(kind, policy, curve, result)


def _repeated(cases: Sequence[ReplayCase]) -> float:
    tokens = sum(len(case.reference) for case in cases)
    weighted = sum(repeated_share(case) * len(case.reference) for case in cases)
    return weighted / tokens if tokens else 0.0
