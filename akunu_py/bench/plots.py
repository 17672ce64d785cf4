"""Pictures of reports, as files. matplotlib is imported only if a picture is requested."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from akunu_py.errors import InvalidRequestError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS: Final = (".png", ".svg", ".pdf")


def check_can_plot(path: Path) -> None:
    """Checks before anything is measured that a picture can be drawn.

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


def new_figure(inches: tuple[float, float], title: str = "") -> "Figure":
    """An empty figure, drawn without a screen."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=inches, layout="constrained")
    figure.suptitle(title)
    return figure


def title_of(model: dict[str, Any], machine: dict[str, Any]) -> str:
    """The model and the machine, short enough for a picture."""
    return (
        f"{model['name']}, {model['layout']} weights, on {machine['chip']} "
        f"({machine['device']}, mlx {machine['mlx']})"
    )
