"""`bench`: measurements of this machine, as tables, JSON and plots; one file a measurement."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from akunu_py.cli.bench_settings import MEASURES, BenchSettings

if TYPE_CHECKING:
    from akunu_py.engine import Engine


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
