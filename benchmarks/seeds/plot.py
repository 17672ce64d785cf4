"""The plot of the seed benchmark: speedups and acceptance by case, beside what was published."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.seeds.measure import DRAFTS
from benchmarks.seeds.report import SeedsReport, SeedsRow

_WIDTH: Final = 0.38


def draw_seeds(report: SeedsReport, path: Path) -> None:
    """Draws two panels for each model: speedups with their intervals, and acceptance."""
    figure = Figure(figsize=(13, 4 * len(report.targets)), layout="constrained")
    panels = figure.subplots(len(report.targets), 2, squeeze=False)
    for (speedups, acceptance), target in zip(panels, report.targets, strict=True):
        title = f"{target.model.steps:,} steps, loss {target.model.validation_loss:.2f}"
        _draw_bars(
            speedups, target.rows, lambda row: row.speedup.median, lambda row: row.published.speedup
        )
        for row, place in _places(target.rows):
            bounds = [row.speedup.low, row.speedup.high]
            speedups.plot([place, place], bounds, color="black", linewidth=1)
        speedups.axhline(1.0, linestyle=":", color="grey")
        speedups.set(title=title, ylabel="speedup")
        _draw_bars(
            acceptance,
            target.rows,
            lambda row: row.acceptance,
            lambda row: row.published.acceptance,
        )
        acceptance.set(title=title, ylabel="accepted drafts", ylim=(0, 1))
        speedups.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def _draw_bars(
    axes: "Axes",
    rows: Sequence[SeedsRow],
    found: Callable[[SeedsRow], float],
    published: Callable[[SeedsRow], float],
) -> None:
    placed = _places(rows)
    for draft in DRAFTS:
        own = [(row, place) for row, place in placed if row.draft == draft]
        places = [place for _, place in own]
        axes.bar(places, [found(row) for row, _ in own], _WIDTH, label=draft)
    axes.plot(
        [place for _, place in placed],
        [published(row) for row, _ in placed],
        "D",
        color="black",
        markersize=4,
        label="published",
    )
    cases = list(dict.fromkeys(row.case for row in rows))
    axes.set_xticks(range(len(cases)), cases)


def _places(rows: Sequence[SeedsRow]) -> list[tuple[SeedsRow, float]]:
    """The position of each row's bar."""
    cases = list(dict.fromkeys(row.case for row in rows))
    return [
        (row, cases.index(row.case) + (list(DRAFTS).index(row.draft) - 0.5) * (_WIDTH + 0.02))
        for row in rows
    ]
