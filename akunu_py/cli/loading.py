"""From a command's model settings to an engine; the model libraries are imported here."""

from pathlib import Path
from typing import TYPE_CHECKING

from akunu_py.cli.settings import ModelSettings
from akunu_py.model_files import BUNDLED_MODEL, find_model

if TYPE_CHECKING:
    from akunu_py.engine import Engine


def load_engine(settings: ModelSettings) -> "Engine":
    """Loads the model that was asked for.

    Raises:
        AkunuError: if that cannot be done.
    """
    from akunu_py.engine import load  # noqa: PLC0415  (takes a second)

    return load(
        settings.name,
        weights=settings.weights,
        max_context=settings.max_context,
        draft_model=settings.draft_model,
    )


def fetch_model(settings: ModelSettings) -> None:
    """Downloads models that are on the hub and not yet here, showing how far that is.

    Raises:
        ModelLoadError: if there is no such model, or it cannot be fetched.
    """
    for name in (settings.name, settings.draft_model):
        if name not in (None, BUNDLED_MODEL) and not Path(name).expanduser().exists():
            find_model(name)
