"""From a command's model settings to an engine; the model libraries are imported here."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from akunu_py.cli.progress import ProgressBar
from akunu_py.cli.settings import ModelSettings
from akunu_py.errors import InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.files import find_adapter, find_model, is_hub_name

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.planning.cost_curve import CostCurve


def load_engine(settings: ModelSettings) -> "Engine":
    """Loads a model.

    Raises:
        AkunuError: if the model does not load.
    """
    for name in _names(settings):
        if not is_hub_name(name):
            find_model(name)  # refuses a wrong path before the libraries load
    if settings.adapter_path is not None:
        find_adapter(settings.adapter_path)
    find_backend()  # without MLX this fails with a clear sentence
    from akunu_py.loading import load  # noqa: PLC0415  (takes a second)

    options = dict(vars(settings))  # the fields are the parameters of `load`
    return load(options.pop("name"), **options)


def measure_costs_with_bar(
    engine: "Engine", seconds: float | None = None, contexts: Sequence[int] | None = None
) -> "CostCurve":
    """Measures what forwards cost now, and keeps it for the engine's planner too.

    Args:
        engine: with the model.
        seconds: how long to measure; None takes the usual time.
        contexts: context lengths to measure at; None takes the usual ones.

    Raises:
        InvalidRequestError: if the model's cache cannot be rolled back.
        BackendError: if the machine is too busy.
    """
    from akunu_py.calibration.forward_times import NoCurveError  # noqa: PLC0415
    from akunu_py.calibration.measure import BUDGET_S, measure_and_store  # noqa: PLC0415

    try:
        with ProgressBar(sys.stderr, "measuring this machine") as bar:
            return measure_and_store(
                engine.model,
                engine.backend,
                budget_s=BUDGET_S if seconds is None else seconds,
                contexts=contexts,
                progress=bar,
            )
    except NoCurveError as error:
        raise InvalidRequestError(f"{error} There are no rounds to measure.") from error


def fetch_model(settings: ModelSettings) -> None:
    """Downloads models that are on the hub and not on this machine yet, with a progress bar.

    Raises:
        ModelLoadError: if there is no such model or adapter, or it cannot be fetched.
    """
    if settings.adapter_path is not None:
        find_adapter(settings.adapter_path)
    for name in _names(settings):
        find_model(name)


def _names(settings: ModelSettings) -> list[str]:
    return [name for name in (settings.name, settings.draft_model) if name is not None]
