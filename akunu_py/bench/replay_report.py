"""`bench replay`: predicted speedups of policies on known answers; nothing is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from akunu_py.bench.measurement import Progress, markdown_table
from akunu_py.bench.replay import ReplayCase, ReplayResult, repeated_share, replay
from akunu_py.calibration.cost_store import NamedCurve
from akunu_py.drafting import AUTO_DRAFTER, MAKERS
from akunu_py.drafting.auto import AutoDrafter
from akunu_py.drafting.base import Drafter
from akunu_py.memory.projects import Memory, ProjectTexts
from akunu_py.memory.segment import Segment
from akunu_py.options import MAX_PLANNED_TOKENS
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.planning.planner import DraftPlanner, FixedPlanner

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
        """All figures with the costs of one curve; with several, the predicted speedups."""
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
