"""Replays every drafter, planned and with fixed num_draft_tokens, on real requests.

    python -m benchmarks.replay_drafters --data DATA [--sets ...] [--costs ...] [--part odd]

DATA holds the data sets in folders of their own names; absent ones are skipped. Drafters and
planners are kept through all requests of a set, as in an engine; drafters that remember text are
made anew for each request, so that they do not know the answers of others. The constants of `auto`
were fitted on the even-numbered requests, so the odd ones count. Nothing is measured: every
speedup is a prediction from a published cost curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from akunu_py.bench.replay import Policy, ReplayReport, ReplayRow, replay_policies
from akunu_py.calibration.cost_store import NamedCurve, find_curves
from akunu_py.model.loading import load_tokenizer
from benchmarks.baselines import ALL_DRAFTERS, drafters_for
from benchmarks.records import markdown_table, options_of, progress_line, record
from benchmarks.replay_data import COSTS, DATA_SETS, PARTS, read_sets

LENGTHS = (1, 2, 4, 8, 16, 32)
OURS = Policy("auto")


def by_drafter(rows: Sequence[ReplayRow], curves: Sequence[NamedCurve]) -> str:
    """A row for each drafter, a column for each curve: planned, and the best fixed length."""
    lines = []
    for drafter in dict.fromkeys(row.policy.drafter for row in rows):
        cells = []
        for curve in curves:
            own = [row for row in rows if row.curve is curve and row.policy.drafter == drafter]
            planned = next(row for row in own if row.policy.num_draft_tokens is None)
            fixed = max((row for row in own if row is not planned), key=lambda row: row.speedup)
            cells.append(
                f"{planned.speedup:.2f} / {fixed.speedup:.2f} ({fixed.policy.num_draft_tokens})"
            )
        lines.append((drafter, *cells))
    return markdown_table(("drafter", *(curve.name for curve in curves)), lines)


def by_length(rows: Sequence[ReplayRow]) -> str:
    """A row per drafter, a column per fixed length: tokens per forward, drafted tokens."""
    lines = []
    for drafter in dict.fromkeys(row.policy.drafter for row in rows):
        found = {
            row.policy.num_draft_tokens: row.result for row in rows if row.policy.drafter == drafter
        }
        results = [found[length] for length in LENGTHS]
        cells = [f"{result.tokens_per_forward:.2f} ({result.drafted:,})" for result in results]
        lines.append((drafter, *cells))
    return markdown_table(("drafter", *map(str, LENGTHS)), lines)


def outcome(rows: Sequence[ReplayRow], curve: NamedCurve) -> tuple[Any, ...]:
    """How `auto + planner` compares with the best other policies with the costs of one curve."""
    here = [row for row in rows if row.curve is curve]
    ours = next(row for row in here if row.policy == OURS)
    others = sorted((row for row in here if row is not ours), key=lambda row: -row.speedup)
    foreign = next((row for row in others if row.policy.drafter != OURS.drafter), ours)
    own = (row.speedup for row in others if row.policy.drafter == OURS.drafter)
    best_fixed = max(1.0, *own)
    ahead = [row for row in others if row.speedup > ours.speedup]
    behind = ", ".join(f"{row.policy} {row.speedup / ours.speedup - 1:+.1%}" for row in ahead[:4])
    return (
        curve.name,
        f"{ours.speedup:.2f}",
        f"{ours.speedup / best_fixed:.0%}",
        f"{ours.result.tokens_per_forward:.2f}",
        f"{ours.result.acceptance:.0%}",
        f"{foreign.policy} {foreign.speedup:.2f}",
        f"{ours.speedup / foreign.speedup - 1:+.1%}",
        behind + (f" and {len(ahead) - 4} more" if len(ahead) > 4 else "") or "none",
    )


def describe(report: ReplayReport) -> str:
    body = [
        "Nothing here was measured: speedups over plain pipelined decoding are predictions from "
        f"costs of forwards. Tokenizer: {report.tokenizer}.",
        "\n".join(f"- {curve}" for curve in report.curves),
        "A cell of a set's second table: the predicted speedup with the planner / with the best "
        f"fixed num_draft_tokens of {', '.join(map(str, LENGTHS))}, which is named in brackets. A "
        "cell of its third table: tokens per forward with that fixed num_draft_tokens (drafted "
        "tokens in all).",
        "Share of best fixed: the planner's speedup over that of the fixed num_draft_tokens that "
        "is best for `auto` on this set and chip, known only afterwards; 0 is one of them.",
    ]
    heads = ("costs", "auto + planner", "share of best fixed", "tokens per forward",
             "acceptance", "best of the others'", "auto is", "policies ahead")  # fmt: skip
    for kind, cases in report.sets.items():
        rows = [row for row in report.rows if row.kind == kind]
        outcomes = [outcome(rows, curve) for curve in report.curves]
        body += [
            f"## {kind}: {len(cases):,} requests",
            markdown_table(heads, outcomes),
            by_drafter(rows, report.curves),
            by_length([row for row in rows if row.curve is report.curves[0]]),
        ]
    return "\n\n".join(body)


def main() -> None:
    parser = options_of(__doc__, name="replay_drafters", data=True)
    parser.add_argument("--model", default="ember", help="whose tokenizer to use")
    parser.add_argument("--costs", nargs="+", default=COSTS)
    parser.add_argument("--drafters", nargs="+", choices=ALL_DRAFTERS, default=list(ALL_DRAFTERS))
    parser.add_argument("--sets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--part", choices=PARTS, default="odd", help="which requests of a set")
    options = parser.parse_args()

    sets = read_sets(options.data, options.sets, options.part, load_tokenizer(options.model))
    curves = find_curves(options.costs, options.model)
    policies = [
        Policy(drafter, length)
        for drafter in options.drafters
        if drafter != "none"
        for length in (None, *LENGTHS)
    ]
    rows = list(
        replay_policies(
            sets, policies, curves, progress=progress_line("replays"), drafters=drafters_for
        )
    )
    report = ReplayReport(sets, curves, rows, options.model)
    title = "Every drafter and planner replayed, the reference text playing the target"
    body = f"The {options.part}-numbered requests. {describe(report)}"
    record(options.name, title, body, report.as_json())


if __name__ == "__main__":
    main()
