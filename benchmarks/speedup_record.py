"""The record of `bench speedup` as Markdown: what `make bench` left in `results/speedup.json`.

python -m akunu_py bench speedup --json > benchmarks/results/speedup.json
python -m benchmarks.speedup_record
"""

from __future__ import annotations

import json
from typing import Any, Final

from akunu_py.bench.machine import machine_line
from benchmarks.report import RESULTS, markdown_table

SHOWN: Final = {"plain": "no drafts", "auto + planner": "default"}
HEADS: Final = (
    "text",
    "answers",
    "akunu_py",
    "over mlx-lm",
    "predicted",
    "over no drafts",
    "tokens a forward",
)


def main() -> None:
    """Write `results/speedup.md` and print it."""
    found: dict[str, Any] = json.loads((RESULTS / "speedup.json").read_text(encoding="utf-8"))
    rows = [_cells(row) for row in found["rows"] if row["contestant"] in SHOWN]
    model = found["model"]
    parts = [
        "# Speedup over mlx-lm",
        f"{machine_line(found['machine'])}. Model {model['name']}, {model['layout']} weights; "
        f"answers of up to {found['max_tokens']} tokens, each given {found['rounds']} times by "
        f"everyone in turns, {max(row['pairs'] for row in found['rows'])} pairs a row.",
        "Medians of pairs, their quartiles in brackets. Own answers are the model's; forced ones "
        "are the right ones in place of the model's choices, every forward paid for.",
        markdown_table(HEADS, rows),
        "What the planner reaches of the fixed length that hindsight would have chosen: the median "
        "over answers given in the same turns, and in brackets where it lies at a confidence of "
        "95%. The best of four is picked from these measurements, so where all are alike it is "
        "the luckiest.",
        markdown_table(
            ("text", "answers", "drafter", "planner", "best fixed length", "share of it"),
            [_check(check) for check in found["planner"]],
        ),
    ]
    if (apart := found["prediction_error"]) is not None:
        parts.append(f"Measured and predicted speedups are {apart:.0%} apart in the median.")
    text = "\n\n".join(parts) + "\n"
    (RESULTS / "speedup.md").write_text(text, encoding="utf-8")
    print(text)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
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


def _check(check: dict[str, Any]) -> tuple[str, ...]:
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


if __name__ == "__main__":
    main()
