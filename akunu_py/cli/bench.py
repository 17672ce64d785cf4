"""`bench`: measurements of this machine, as tables, JSON and plots; one file a measurement."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from akunu_py.cli.bench_settings import MEASURES, BenchSettings
from akunu_py.cli.progress import MeasuringBar
from akunu_py.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from akunu_py.engine import Engine
    from akunu_py.planning.cost_curve import CostCurve

_LEAST_COLUMNS: Final = 110
"""Tables are not squeezed below this; a narrower terminal wraps or scrolls them."""


def run(settings: BenchSettings) -> int:
    """Prints what was measured; progress goes to standard error.

    Raises:
        AkunuError: if it cannot be measured, or not drawn.
    """
    return int(import_module(MEASURES[settings.measure].home).run(settings.settings))


def describe_model(engine: "Engine") -> dict[str, Any]:
    """What of a model changes the figures."""
    model = engine.model
    return {
        "name": model.name,
        "layout": model.layout,
        "parameter_bytes": model.parameter_bytes,
        "context_length": model.context_length,
        "vocabulary_size": model.vocabulary_size,
    }


def measure_costs(engine: "Engine", seconds: float) -> "CostCurve":
    """Measures what forwards cost now, and keeps it for the engine's planner too.

    Raises:
        InvalidRequestError: if the model's cache cannot be rolled back.
    """
    from akunu_py.calibration import (  # noqa: PLC0415
        NoCurveError,
        cost_key,
        measure_cost_curve,
    )
    from akunu_py.planning.cost_store import CostStore  # noqa: PLC0415

    try:
        with MeasuringBar(sys.stderr) as bar:
            curve = measure_cost_curve(engine.model, budget_s=seconds, progress=bar)
    except NoCurveError as error:
        raise InvalidRequestError(f"{error} There are no rounds to measure.") from error
    CostStore().save(cost_key(engine.model, engine.backend), curve)
    return curve


def print_tables(tables: "RenderableType") -> None:
    """Prints tables to standard output, as wide as they need."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, _LEAST_COLUMNS)
    console.print(tables)
