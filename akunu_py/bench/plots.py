"""Plots of the reports, as files. matplotlib is imported only if a plot is requested."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from akunu_py.bench.cost_report import THEORY_ACCEPTANCES, CostReport
from akunu_py.errors import InvalidRequestError
from akunu_py.planning.theory import break_even, expected_accepted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from akunu_py.bench.replay_report import ReplayReport
    from akunu_py.bench.speedup_report import SpeedupReport


_FORMATS: Final = (".png", ".svg", ".pdf")


def check_can_plot(path: Path) -> None:
    """Checks before anything is measured that a plot can be drawn.

    Raises:
        InvalidRequestError: if matplotlib is missing or the name has another ending.
    """
    try:
        import matplotlib.figure  # noqa: F401, PLC0415
    except ImportError as error:
        raise InvalidRequestError(
            "Plots need matplotlib, which is not installed: pip install 'akunu-py[plot]'."
        ) from error
    if path.suffix.lower() not in _FORMATS:
        raise InvalidRequestError(
            f"A plot cannot be written as {path.name}; end its name with .png, .svg or .pdf."
        )
    if not path.parent.is_dir():
        raise InvalidRequestError(f"There is no folder {path.parent} to write a plot to.")


def draw_cost(report: CostReport, path: Path) -> None:
    """Draws costs over tokens, break-even over num_draft_tokens, and the theory's E[accepted]."""
    figure = new_figure((14, 4.2))
    costs, thresholds, theory = figure.subplots(1, 3)
    _draw_costs(costs, report)
    _draw_thresholds(thresholds, report)
    _draw_theory(theory, report.lengths)
    figure.suptitle(_title(report.model, report.machine))
    figure.savefig(path, dpi=150)


def draw_replay(report: "ReplayReport", path: Path) -> None:
    """Draws a panel for each set: the predicted speedup of each policy, for every cost curve."""
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


def draw_speedup(report: "SpeedupReport", path: Path) -> None:
    """Draws a panel for each workload: measured speedups, their quartiles and the predictions."""
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
        predictions = [(row.predicted, place) for place, row in enumerate(rows) if row.predicted]
        if predictions:
            marks = zip(*predictions, strict=True)
            axes.plot(*marks, "|", color="black", markersize=14, label="predicted")
            axes.legend(fontsize="small")
        axes.axvline(1.0, linestyle=":", color="grey")
        axes.set_yticks(places, [row.contestant for row in rows], fontsize="small")
        axes.invert_yaxis()
        axes.set(title=f"{kind}, {answers} answers", xlabel="speedup over mlx-lm")
    figure.suptitle(_title(report.model, report.machine))
    figure.savefig(path, dpi=150)


def new_figure(inches: tuple[float, float]) -> "Figure":
    """An empty figure, drawn without a screen."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    return Figure(figsize=inches, layout="constrained")


def _title(model: dict[str, Any], machine: dict[str, Any]) -> str:
    return (
        f"{model['name']}, {model['layout']} weights, on {machine['chip']} "
        f"({machine['device']}, mlx {machine['mlx']})"
    )


def _draw_costs(axes: "Axes", report: CostReport) -> None:
    curve = report.curve
    sizes = range(1, curve.longest + 1)
    for level in curve.levels:
        costs = [1e3 * curve.verify_s(size, level.context) for size in sizes]
        (line,) = axes.plot(sizes, costs, label=f"forward, context {level.context:,}")
        measured = [1e3 * seconds for _, seconds in level.verify_s]
        axes.plot([size for size, _ in level.verify_s], measured, ".", color=line.get_color())
    step = 1e3 * curve.decode_s(report.context)
    axes.axhline(step, linestyle=":", color="grey", label="pipelined step")
    axes.plot(
        sizes, [step * size for size in sizes], "--", color="grey", linewidth=0.8, label="M steps"
    )
    axes.set_ylim(0, 1.2e3 * curve.verify_s(curve.longest, curve.levels[-1].context))
    axes.set(title="What a forward costs", xlabel="M, tokens in the forward", ylabel="ms")
    axes.legend(fontsize="small")


def _draw_thresholds(axes: "Axes", report: CostReport) -> None:
    thresholds = [
        (drafts, threshold)
        for drafts in range(1, report.curve.longest)
        if (threshold := break_even(report.curve, drafts, report.context)) is not None
    ]
    axes.plot([drafts for drafts, _ in thresholds], [level for _, level in thresholds])
    axes.set_ylim(0, 1)
    axes.set(title="When drafts pay", xlabel="num_draft_tokens", ylabel="break-even acceptance")


def _draw_theory(axes: "Axes", lengths: list[int]) -> None:
    for acceptance in THEORY_ACCEPTANCES:
        accepted = [expected_accepted(drafts, acceptance) for drafts in lengths]
        axes.plot(lengths, accepted, label=f"a = {acceptance:g}")
    axes.set(title="Theory: accepted tokens per round", xlabel="num_draft_tokens", ylabel="E")
    axes.legend(fontsize="small")
