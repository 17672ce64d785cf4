"""Cost curves by name: published ones, those of this machine, and those in files.

A published curve is relative: its unit of time is a pass over one token, which is all that a
prediction needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from akunu_py.calibration.cost_store import CostKey, CostStore, read_published, relative_curve
from akunu_py.errors import InvalidRequestError
from akunu_py.planning.cost_curve import CostCurve

HERE: Final = "here"
"""The name of the curve that was measured on this machine."""

_MAX_FILE_BYTES: Final = 1 << 20
_ABOUT: Final = ("chip", "name", "layout", "mlx")
"""The fields of a recorded machine and model that describe a curve."""


@dataclass(frozen=True)
class NamedCurve:
    """A curve, and what it was measured on.

    Attributes:
        about: the chip, the model and the libraries, in one line.
        source: who measured it.
        relative: whether its unit of time is a pass over one token, instead of a second.
    """

    name: str
    curve: CostCurve
    about: str
    source: str
    relative: bool = False

    def as_json(self) -> dict[str, Any]:
        """The curve and what is known about it, in JSON's types."""
        return {
            "name": self.name,
            "about": self.about,
            "source": self.source,
            "unit": "a forward pass over one token" if self.relative else "seconds",
            "curve": self.curve.as_json(),
        }


def published_curves() -> dict[str, NamedCurve]:
    """The curves that come with the package, by name."""
    curves = map(_published, read_published())
    return {curve.name: curve for curve in curves}


def measured_curves(model: str, store: CostStore | None = None) -> list[NamedCurve]:
    """The curves that were measured on this machine for a model, the latest first."""
    return [
        NamedCurve(HERE, curve, _about_key(key), "measured on this machine")
        for key, curve in (store or CostStore()).entries()
        if key.model == model
    ]


def find_curves(words: Sequence[str], model: str) -> list[NamedCurve]:
    """The requested curves: by a published name, as `here`, or as files.

    Args:
        words: what was requested; if empty, every published curve and this machine's.
        model: the model that `here` stands for.

    Raises:
        InvalidRequestError: if a curve is not found.
    """
    published = published_curves()
    if not words:
        return [*measured_curves(model)[:1], *published.values()]
    return [_find_curve(word, model, published) for word in words]


def read_curve(path: Path) -> NamedCurve:
    """Reads a curve from a file: what `bench cost --json` prints, or a published curve's form.

    Raises:
        InvalidRequestError: if the file cannot be read, or holds no curve.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError("too large for a cost curve")
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "relative" in data:
            return _published({"name": path.stem, "source": path.name} | data)
        curve = CostCurve.from_json(data.get("curve", data) if isinstance(data, dict) else data)
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}.") from error
    except (
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise InvalidRequestError(
            f"{path} holds no cost curve ({error}); `bench cost --json` prints one."
        ) from error
    parts = (data.get("machine"), data.get("model"))
    facts = [part.get(name) for part in parts if isinstance(part, dict) for name in _ABOUT]
    about = ", ".join(str(fact) for fact in facts if fact) or path.name
    return NamedCurve(path.stem, curve, about, path.name)


def _find_curve(word: str, model: str, published: dict[str, NamedCurve]) -> NamedCurve:
    if word in published:
        return published[word]
    if word == HERE:
        if own := measured_curves(model):
            return own[0]
        raise InvalidRequestError(
            f"The costs of {model} were not measured on this machine yet; run `bench cost` first."
        )
    path = Path(os.path.expanduser(word))
    if path.is_file():
        return read_curve(path)
    known = ", ".join(published)
    raise InvalidRequestError(
        f"There is no cost curve {word}; give a file or one of {HERE}, {known}."
    )


def _published(data: dict[str, Any]) -> NamedCurve:
    curve = relative_curve(data)
    facts = [str(data[part]) for part in ("chip", "model", "quantization") if part in data]
    about = ", ".join([*facts, *([f"mlx {data['mlx']}"] if "mlx" in data else [])])
    return NamedCurve(str(data["name"]), curve, about, str(data["source"]), relative=True)


def _about_key(key: CostKey) -> str:
    blas = f", {key.blas}" if key.blas else ""
    return f"{key.chip}{blas}, {key.model}, {key.layout}, mlx {key.mlx}"


def about_lines(curves: Sequence[NamedCurve]) -> Iterator[str]:
    """One line for each curve: its name, what it was measured on, and by whom."""
    width = max(len(curve.name) for curve in curves)
    for curve in curves:
        yield f"{curve.name:<{width}}  {curve.about} ({curve.source})"
