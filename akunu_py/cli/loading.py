"""From a command's model settings to an engine; the model libraries are imported here."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from akunu_py.backend import find_backend
from akunu_py.cli.progress import MeasuringBar
from akunu_py.cli.settings import ModelSettings
from akunu_py.errors import InvalidRequestError
from akunu_py.model_files import find_adapter, find_model, is_hub_name

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.planning.cost_curve import CostCurve


def load_engine(settings: ModelSettings, *, prefill_step_size: int | None = None) -> "Engine":
    """Loads a model; `prefill_step_size` of None leaves it to the engine.

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

    return load(
        settings.name,
        weights=settings.weights,
        max_context=settings.max_context,
        draft_model=settings.draft_model,
        prefill_step_size=prefill_step_size,
        adapter_path=settings.adapter_path,
        trust_remote_code=settings.trust_remote_code,
        chat_template=settings.chat_template,
        use_default_chat_template=settings.use_default_chat_template,
        chat_template_args=settings.chat_template_args,
        prompt_cache_bytes=settings.prompt_cache_bytes,
        prompt_cache_dir=settings.prompt_cache_dir,
        prompt_cache_file=settings.prompt_cache_file,
        kv_bits=settings.kv_bits,
        kv_group_size=settings.kv_group_size,
        quantized_kv_start=settings.quantized_kv_start,
        max_kv_size=settings.max_kv_size,
        project=settings.project,
        pipeline=settings.pipeline,
        rank_timeout=settings.rank_timeout,
    )


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
    from akunu_py.calibration import BUDGET_S, NoCurveError, measure_and_store  # noqa: PLC0415

    try:
        with MeasuringBar(sys.stderr) as bar:
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
