"""The plot of `bench replay`: predicted speedups, a group of bars for each cost curve."""

from pathlib import Path

from akunu_py.bench.plots import new_figure
from akunu_py.bench.replay_report import ReplayReport


def draw_replay(report: ReplayReport, path: Path) -> None:
    """Draws a row of bars a set: for every curve the predicted speedup of each policy."""
    kinds = list(report.sets)
    figure = new_figure((3 + 1.1 * len(report.curves), 1 + 2.8 * len(kinds)))
    names = [curve.name for curve in report.curves]
    for axes, kind in zip(figure.subplots(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        rows = [row for row in report.rows if row.kind == kind]
        policies = list(dict.fromkeys(str(row.policy) for row in rows))
        width = 0.8 / len(policies)
        for index, policy in enumerate(policies):
            found = {row.curve.name: row.speedup for row in rows if str(row.policy) == policy}
            places = [place + (index + 0.5) * width - 0.4 for place in range(len(names))]
            axes.bar(places, [found[name] for name in names], width, label=policy)
        axes.axhline(1.0, linestyle=":", color="grey")
        axes.set_xticks(range(len(names)), names, rotation=20)
        axes.set(title=kind, ylabel="predicted speedup")
        axes.legend(fontsize="small")
    figure.suptitle("Predicted from cost curves, not measured")
    figure.savefig(path, dpi=150)
