"""From the options of a model to an engine; the model libraries are imported here."""

import sys
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from akunu_py.cli.render import ProgressBar
from akunu_py.errors import BackendError, InvalidRequestError
from akunu_py.machine.backend import find_backend
from akunu_py.model.files import find_adapter, find_model, is_hub_name
from akunu_py.model.library import LocalModel
from akunu_py.options import ModelOptions
from akunu_py.planning.cost_curve import MEASURED

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.planning.cost_curve import CostCurve

_ATTEMPTS: Final = 3


def load_engine(options: ModelOptions) -> "Engine":
    """Loads a model; a wrong local path is refused before the libraries load."""
    fetch_model(options, from_hub=False)
    find_backend()  # fails with a clear sentence if there is no MLX
    from akunu_py.loading import load  # noqa: PLC0415  (takes a second)

    return load(options)


def measure_costs_with_bar(
    engine: "Engine", seconds: float | None = None, contexts: Sequence[int] | None = None
) -> "CostCurve":
    """Measures what forward passes cost now, and stores it for the engine's planner; by default,
    for the usual time and context lengths. If other work distorts them, it measures again, twice
    at most. See `measure_and_store` for the errors.
    """
    from akunu_py.calibration.measure import BUDGET_S, measure_and_store  # noqa: PLC0415

    budget_s, left = BUDGET_S if seconds is None else seconds, _ATTEMPTS
    while True:
        left -= 1
        try:
            with ProgressBar(sys.stderr, "measuring this machine") as bar:
                return measure_and_store(
                    engine.model,
                    engine.backend,
                    budget_s=budget_s,
                    contexts=contexts,
                    progress=bar,
                )
        except BackendError:
            if not left:
                raise


def find_row_class_with_bar(
    engine: "Engine", curve: "CostCurve", most_price: float = inf
) -> "CostCurve":
    """Finds out which forward passes compute identical rows, if this is unknown and the costs are
    trusted, and stores it with them. Passes that cost more than `most_price` are not looked for."""
    from akunu_py.calibration.measure import find_row_class  # noqa: PLC0415

    if curve.doubt > MEASURED or curve.row_class is not None:
        return curve
    with ProgressBar(sys.stderr, "comparing forward passes") as bar:
        return find_row_class(
            engine.model, engine.backend, curve, most_price=most_price, progress=bar
        )


def check_ability(options: ModelOptions) -> None:
    """Refuses a model that generates no text; fetches one that is not on this machine."""
    model = LocalModel.named(options.name)
    if model.ability != "completion":
        why = f"{model.name} is for {model.ability}, not for completion: choose another model"
        raise InvalidRequestError(f"{why}; `serve` offers its embeddings or rankings.")


def fetch_model(options: ModelOptions, *, from_hub: bool = True) -> None:
    """Downloads models from the hub that are not on this machine yet, with a progress bar."""
    for name in (options.name, options.draft_model):
        if name is not None and (from_hub or not is_hub_name(name)):
            find_model(name)
    if options.adapter_path is not None:
        find_adapter(options.adapter_path)
