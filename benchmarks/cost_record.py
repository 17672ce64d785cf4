"""The record of `bench cost` as Markdown: what `make bench` left in `results/cost.json`.

python -m akunu_py bench cost --json > benchmarks/results/cost.json
python -m benchmarks.cost_record
"""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from akunu_py.bench.cost_report import CostReport
from akunu_py.bench.machine import machine_line
from akunu_py.planning.cost_curve import CostCurve
from benchmarks.report import RESULTS


def main() -> None:
    """Write `results/cost.md` and print it."""
    found: dict[str, Any] = json.loads((RESULTS / "cost.json").read_text(encoding="utf-8"))
    report = CostReport(found["machine"], found["model"], CostCurve.from_json(found["curve"]))
    console = Console(width=100)
    with console.capture() as tables:
        console.print(report.tables())
    printed = "\n".join(line.rstrip() for line in tables.get().splitlines())
    text = (
        "# What forwards cost\n\n"
        f"{machine_line(report.machine)}. Model {report.model['name']}, "
        f"{report.model['layout']} weights. Drawn in [cost.svg](cost.svg).\n\n"
        f"```text\n{printed}\n```\n\n{report.payoff}\n"
    )
    (RESULTS / "cost.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
