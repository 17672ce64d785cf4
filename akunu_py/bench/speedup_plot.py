"""The plot of `bench speedup`: measured speedups as bars, predicted ones as marks on them."""

from pathlib import Path

from akunu_py.bench.plots import new_figure
from akunu_py.bench.speedup_report import SpeedupReport


def draw_speedup(report: SpeedupReport, path: Path) -> None:
    """Draws a panel a workload: a bar a contestant, with its quartiles and its prediction."""
    panels = list(dict.fromkeys((row.kind, row.answers) for row in report.rows))
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = new_figure((5.2 * columns, 0.8 + 3.4 * lines))
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (kind, answers) in zip(grid.flat, panels, strict=False):
        rows = [row for row in report.rows if (row.kind, row.answers) == (kind, answers)]
        spreads = [row.speedup for row in rows]
        medians = [spread.median for spread in spreads]
        below = [spread.median - spread.low for spread in spreads]
        above = [spread.high - spread.median for spread in spreads]
        places = range(len(rows))
        axes.barh(places, medians, xerr=(below, above), color="tab:blue", ecolor="grey")
        told = [(row.predicted, place) for place, row in enumerate(rows) if row.predicted]
        if told:
            marks = zip(*told, strict=True)
            axes.plot(*marks, "|", color="black", markersize=14, label="predicted")
            axes.legend(fontsize="small")
        axes.axvline(1.0, linestyle=":", color="grey")
        axes.set_yticks(places, [row.contestant for row in rows], fontsize="small")
        axes.invert_yaxis()
        axes.set(title=f"{kind}, {answers} answers", xlabel="speedup over mlx-lm")
    machine = report.machine
    figure.suptitle(
        f"{report.model['name']}, {report.model['layout']} weights, on {machine['chip']} "
        f"({machine['device']}, mlx {machine['mlx']})"
    )
    figure.savefig(path, dpi=150)
