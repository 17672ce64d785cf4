"""`bench replay`: what policies would have brought on known answers, as tables and as JSON.

Token ids and cost curves come in. Every speedup told here is a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from akunu_py.bench.curve_sources import NamedCurve
from akunu_py.bench.replay import ReplayCase, ReplayResult, repeated_share, replay
from akunu_py.drafting import REMEMBERS_TEXT, make_drafter
from akunu_py.drafting.base import Drafter
from akunu_py.planning.planner import MOST_PLANNED_DRAFTS, DraftPlanner, FixedPlanner

Progress = Callable[[int, int], None]
"""Called with the replays done and those that are to do."""


@dataclass(frozen=True)
class Policy:
    """Who drafts, and how much of it is verified.

    Attributes:
        drafter: a drafter's name.
        drafts: the most drafts a round verifies; None leaves that to the planner.
    """

    drafter: str
    drafts: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.drafter} + planner"
            if self.drafts is None
            else f"{self.drafter}, K={self.drafts}"
        )

    @property
    def _fixed(self) -> str:
        return f"{self.drafter}, K={self.drafts}"

    def replay(
        self, cases: Sequence[ReplayCase], curve: NamedCurve, *, keeps: bool = False
    ) -> ReplayResult:
        """Replays requests where forwards cost what a curve says.

        Args:
            cases: the requests.
            curve: what the planner goes by.
            keeps: whether an answer may be known from an earlier request. Else a drafter that
                remembers text is made anew for each. All else that drafters and planners learn
                lives through the requests, as in an engine.
        """
        limit = MOST_PLANNED_DRAFTS if self.drafts is None else self.drafts
        planner = DraftPlanner(curve.curve) if self.drafts is None else FixedPlanner(limit)
        kept = make_drafter(self.drafter)
        forgets = not keeps and self.drafter in REMEMBERS_TEXT

        def make() -> Drafter:
            return make_drafter(self.drafter) if forgets else kept

        return replay(make, cases, planner, curve=curve.curve, limit=limit)


@dataclass(frozen=True)
class ReplayRow:
    """What a policy came to on one set of requests, where forwards cost what one curve says."""

    kind: str
    policy: Policy
    curve: NamedCurve
    result: ReplayResult

    @property
    def speedup(self) -> float:
        """The predicted one, against plain decoding in a pipelined loop."""
        return self.result.predicted_speedup(self.curve.curve)

    def as_json(self) -> dict[str, Any]:
        """All of it, in JSON's types."""
        result = self.result
        return {
            "set": self.kind,
            "drafter": self.policy.drafter,
            "num_draft_tokens": self.policy.drafts,
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
    """All that was replayed.

    Attributes:
        sets: the requests, by the name of their set.
        curves: the costs that predictions are made for.
        rows: what came out.
        tokenizer: whose ids they are.
    """

    sets: Mapping[str, Sequence[ReplayCase]]
    curves: Sequence[NamedCurve]
    rows: Sequence[ReplayRow]
    tokenizer: str

    def as_json(self) -> dict[str, Any]:
        """All of it, in JSON's types."""
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

    def tables(self) -> Group:
        """A table a set, to be printed by rich."""
        parts: list[RenderableType] = []
        for kind, cases in self.sets.items():
            tokens = sum(len(case.reference) for case in cases)
            parts += [
                f"{kind}: {len(cases):,} requests, {tokens:,} tokens of reference answers, "
                f"{_repeated(cases):.0%} of their 4-grams seen before",
                self._table(kind),
                "",
            ]
        return Group(*parts)

    def _table(self, kind: str) -> Table:
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.add_column("")
        for name in ("predicted\nspeedup", "tokens a\nforward", "\nforwards", "\ndrafted",
                     "\naccepted", "accept-\nance"):  # fmt: skip
            table.add_column(name, justify="right", no_wrap=True)
        for curve in self.curves:
            table.add_row(curve.name, style="bold")
            for row in self.rows:
                if (row.kind, row.curve) == (kind, curve):
                    table.add_row(f"  {row.policy}", f"{row.speedup:.2f}x", *_cells(row.result))
        return table


def replay_policies(
    sets: Mapping[str, Sequence[ReplayCase]],
    policies: Sequence[Policy],
    curves: Sequence[NamedCurve],
    *,
    keeps: bool = False,
    progress: Progress | None = None,
) -> Iterator[ReplayRow]:
    """A row for each set, policy and curve; a fixed number of drafts is replayed only once."""
    replays = [
        (kind, policy, group)
        for kind in sets
        for policy in policies
        for group in ([[curve] for curve in curves] if policy.drafts is None else [list(curves)])
    ]
    for done, (kind, policy, group) in enumerate(replays):
        if progress:
            progress(done, len(replays))
        result = policy.replay(sets[kind], group[0], keeps=keeps)
        for curve in group:
            yield ReplayRow(kind, policy, curve, result)


def _cells(result: ReplayResult) -> tuple[str, ...]:
    return (
        f"{result.tokens_per_forward:.2f}",
        f"{result.forwards:,}",
        f"{result.drafted:,}",
        f"{result.accepted:,}",
        f"{result.acceptance:.0%}",
    )


def _repeated(cases: Sequence[ReplayCase]) -> float:
    """The mean share of repeated 4-grams, by tokens."""
    tokens = sum(len(case.reference) for case in cases)
    weighted = sum(repeated_share(case) * len(case.reference) for case in cases)
    return weighted / tokens if tokens else 0.0
