"""The training curve as a picture for the model card.

Above: the loss of each kind of example, smoothed. Below: held-out edits while training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SMOOTHING = 0.85


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records in order; where a resumed run repeated steps, the later record counts."""
    by_step = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def smoothed(values: Sequence[float]) -> list[float]:
    """An exponential average that starts at the first value."""
    kept: list[float] = []
    for value in values:
        kept.append(value if not kept else SMOOTHING * kept[-1] + (1 - SMOOTHING) * value)
    return kept


def plot(log: Path, target: Path) -> None:
    """Draw `log` into `target`, the same bytes for the same log."""
    import matplotlib as mpl  # noqa: PLC0415  (only the training environment has it)
    from matplotlib import pyplot  # noqa: PLC0415

    mpl.rcParams.update({"svg.hashsalt": "ember", "font.size": 9, "svg.fonttype": "none"})
    records = read_log(log)
    figure, (losses, probes) = pyplot.subplots(2, 1, figsize=(7, 6), sharex=True)
    for kind in sorted({kind for record in records for kind in record["by_kind"]}):
        points = [(r["step"], r["by_kind"][kind]) for r in records if kind in r["by_kind"]]
        steps, values = zip(*points, strict=True)
        losses.plot(steps, smoothed(values), label=kind.replace("_", " "), linewidth=1.2)
    losses.set_ylabel("loss (nats a token)")
    losses.legend(ncols=2, frameon=False)
    probed = [record for record in records if "probe" in record]
    for key, label in (("tokens_right", "tokens right"), ("exact", "exactly right")):
        points = [record["probe"][key] for record in probed]
        probes.plot([record["step"] for record in probed], points, marker="o", ms=3, label=label)
    probes.set_ylabel("held-out edits")
    probes.set_ylim(0, 1)
    probes.set_xlabel("step")
    probes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
