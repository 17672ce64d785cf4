"""Plots, as files. matplotlib is imported in functions alone, and only when one is asked for."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from akunu_py.bench.cost_report import THEORY_ACCEPTANCES, CostReport
from akunu_py.errors import InvalidRequestError
from akunu_py.planning.theory import break_even, expected_accepted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def check_can_plot(path: Path) -> None:
    """Finds out before anything is measured whether a plot can be drawn.

    Raises:
        InvalidRequestError: if matplotlib is missing, or if it has no such format.
    """
    backend = _agg()
    formats = backend.FigureCanvasAgg.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in formats:
        raise InvalidRequestError(
            f"A plot cannot be written as {path.name}; end its name with .png, .svg or .pdf."
        )
    if not path.parent.is_dir():
        raise InvalidRequestError(f"There is no folder {path.parent} to write a plot to.")


def draw_cost(report: CostReport, path: Path) -> None:
    """Draws cost against tokens, break-even against drafts, and the theory's E[accepted]."""
    figure = new_figure((14, 4.2))
    costs, thresholds, theory = figure.subplots(1, 3)
    _draw_costs(costs, report)
    _draw_thresholds(thresholds, report)
    _draw_theory(theory, report.lengths)
    machine = report.machine
    figure.suptitle(
        f"{report.model['name']}, {report.model['layout']} weights, on {machine['chip']} "
        f"({machine['device']}, mlx {machine['mlx']})"
    )
    figure.savefig(path, dpi=150)


def new_figure(inches: tuple[float, float]) -> "Figure":
    """An empty figure, drawn without a screen."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=inches, layout="constrained")
    _agg().FigureCanvasAgg(figure)
    return figure


def _agg() -> Any:
    try:
        from matplotlib.backends import backend_agg  # noqa: PLC0415
    except ImportError as error:
        raise InvalidRequestError(
            "Plots need matplotlib, which is not installed: pip install 'akunu-py[plot]'."
        ) from error
    return backend_agg


def _draw_costs(axes: "Axes", report: CostReport) -> None:
    curve = report.curve
    sizes = range(1, curve.longest + 1)
    for level in curve.levels:
        costs = [1e3 * curve.verify_s(size, level.context) for size in sizes]
        (line,) = axes.plot(sizes, costs, label=f"round, context {level.context:,}")
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
    axes.set(
        title="From when K drafts pay", xlabel="K, drafts a round", ylabel="break-even acceptance"
    )


def _draw_theory(axes: "Axes", lengths: list[int]) -> None:
    for acceptance in THEORY_ACCEPTANCES:
        accepted = [expected_accepted(drafts, acceptance) for drafts in lengths]
        axes.plot(lengths, accepted, label=f"a = {acceptance:g}")
    axes.set(title="Theory: accepted tokens a round", xlabel="D, drafts a round", ylabel="E")
    axes.legend(fontsize="small")
