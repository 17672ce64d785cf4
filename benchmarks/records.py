"""Results of measurements, as Markdown and JSON in `results/`.

    python -m akunu_py bench cost --json > benchmarks/results/cost.json
    python -m benchmarks.records cost

The scripts of this folder call `record`. For the JSON that `bench cost` and `bench speedup` print,
this command writes the Markdown, and draws `cost` and `speedup`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from rich.console import Console

from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.measurement import Spread, machine_line, markdown_table
from akunu_py.bench.plots import draw_cost, draw_speedup
from akunu_py.planning.cost_curve import CostCurve

__all__ = ["RESULTS", "markdown_table", "progress_line", "record"]

RESULTS: Final = Path(__file__).parent / "results"
_SPREAD: Final = ("median", "lower_quartile", "upper_quartile")
SHOWN: Final = {"plain": "no drafts", "auto + planner": "default"}
"""The contestants in the record of `bench speedup`, and what it calls them."""


def record(name: str, title: str, body: str, result: dict[str, Any]) -> None:
    """Writes `results/NAME.md` and `.json`, and prints both, the JSON as the last line."""
    _write_markdown(name, f"# {title}\n\n{body}\n")
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def progress_line(what: str) -> Callable[[int, int], None]:
    """A callback that writes `done/total what` to standard error, in one line."""

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done}/{total} {what}", end=end, file=sys.stderr, flush=True)

    return show


def cost_report(found: dict[str, Any]) -> CostReport:
    """The report that `bench cost --json` printed."""
    return CostReport(found["machine"], found["model"], CostCurve.from_json(found["curve"]))


def cost_markdown(found: dict[str, Any]) -> str:
    """The record of `bench cost --json`."""
    report = cost_report(found)
    console = Console(width=100)
    with console.capture() as tables:
        console.print(report.tables())
    printed = "\n".join(line.rstrip() for line in tables.get().splitlines())
    return (
        "# What forwards cost\n\n"
        f"{machine_line(report.machine)}. Model {report.model['name']}, "
        f"{report.model['layout']} weights. Drawn in [cost.svg](cost.svg).\n\n"
        f"```text\n{printed}\n```\n\n{report.payoff}\n"
    )


def speedup_markdown(found: dict[str, Any]) -> str:
    """The record of `bench speedup --json`."""
    model = found["model"]
    parts = [
        "# Speedup over mlx-lm",
        f"{machine_line(found['machine'])}. Model {model['name']}, {model['layout']} weights; "
        f"answers of up to {found['max_tokens']} tokens. Every contestant gave each answer "
        f"{found['rounds']} times, in turns; {max(row['pairs'] for row in found['rows'])} pairs "
        "in a row of the table.",
        "Medians of pairs, with their quartiles in brackets. Own answers are the model's. Forced "
        "answers are the right ones in place of the model's choices; every forward is computed.",
        markdown_table(
            ("text", "answers", "akunu_py", "over mlx-lm", "predicted", "over no drafts",
             "tokens per forward"),
            [_speedup_cells(row) for row in found["rows"] if row["contestant"] in SHOWN],
        ),
    ]  # fmt: skip
    if found["planner"]:
        parts += [
            "The planner's speed over that of the best fixed num_draft_tokens, which is known only "
            "afterwards: the median over answers of the same turns, with its 95% interval in "
            "brackets. The best of four is chosen by these measurements, so where all are equally "
            "fast it is the luckiest one.",
            markdown_table(
                ("text", "answers", "drafter", "planner", "best fixed", "share of it"),
                [_check_cells(check) for check in found["planner"]],
            ),
        ]
    if (apart := found["prediction_error"]) is not None:
        parts.append(f"Measured and predicted speedups are {apart:.0%} apart in the median.")
    return "\n\n".join(parts) + "\n"


def _speedup_cells(row: dict[str, Any]) -> tuple[str, ...]:
    predicted = row["predicted_speedup"]
    return (
        row["workload"] + (", sampled" if row["sampled"] else ""),
        row["answers"],
        SHOWN[row["contestant"]],
        _spread(row["speedup"]),
        "" if predicted is None else f"{predicted:.2f}",
        _spread(row["over_plain"]),
        f"{row['tokens_per_forward']:.2f}",
    )


def _check_cells(check: dict[str, Any]) -> tuple[str, ...]:
    return (
        check["kind"],
        check["answers"],
        check["drafter"],
        f"{check['planned']:.2f}",
        f"{check['best']:.2f} ({check['best_name']})",
        "{median:.0%} ({low:.0%}-{high:.0%})".format(**check["share"]),
    )


def _spread(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['lower_quartile']:.2f}-{spread['upper_quartile']:.2f})"


def _write_markdown(name: str, text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def speedup_to_draw(found: dict[str, Any]) -> Any:
    """What `draw_speedup` reads of the report that `bench speedup --json` printed."""
    rows = [
        SimpleNamespace(
            kind=row["workload"],
            answers=row["answers"],
            contestant=row["contestant"],
            predicted=row["predicted_speedup"],
            speedup=Spread(*(row["speedup"][part] for part in _SPREAD)),
        )
        for row in found["rows"]
    ]
    return SimpleNamespace(model=found["model"], machine=found["machine"], rows=rows)


_MARKDOWN: Final = {
    "cost": cost_markdown,
    "speedup": speedup_markdown,
    "speedup_unrepeated": speedup_markdown,
    "speedup_109m": speedup_markdown,
    "speedup_109m_edits": speedup_markdown,
}


def main() -> None:
    """Writes `results/NAME.md` from `results/NAME.json`, and prints it; draws some."""
    parser = argparse.ArgumentParser(description="Writes the Markdown of a `bench --json` result.")
    parser.add_argument("name", choices=_MARKDOWN, help="of the file in results/")
    name = parser.parse_args().name
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    _write_markdown(name, _MARKDOWN[name](found))
    if name == "cost":
        draw_cost(cost_report(found), RESULTS / "cost.svg")
    elif name == "speedup":
        draw_speedup(speedup_to_draw(found), RESULTS / "speedup.svg")


if __name__ == "__main__":
    main()
