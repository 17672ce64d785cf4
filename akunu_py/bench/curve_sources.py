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

from akunu_py.calibration.cost_store import CostStore, read_published, relative_curve
from akunu_py.errors import InvalidRequestError
from akunu_py.planning.cost_curve import CostCurve

HERE: Final = "here"
"""The name of the curve that was measured on this machine."""

_ABOUT: Final = ("chip", "name", "layout", "mlx")
"""The fields of a recorded machine and model that describe a curve."""


@dataclass(frozen=True)
class NamedCurve:
    """A curve, and what it was measured on and by whom.

    The unit of time of a `relative` one is a pass over one token, instead of a second.
    """

    name: str
    curve: CostCurve
    about: str
    source: str
    relative: bool = False

    def as_json(self) -> dict[str, Any]:
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
        NamedCurve(
            HERE,
            curve,
            f"{key.chip}{f', {key.blas}' if key.blas else ''}, {key.model}, {key.layout}, "
            f"mlx {key.mlx}",
            "measured on this machine",
        )
        for key, curve in (store or CostStore()).entries()
        if key.model == model
    ]


def find_curves(words: Sequence[str], model: str) -> list[NamedCurve]:
    """The curves that words name: published ones, files, or `here` for a model's own; without
    words, every published curve and this machine's.

    Raises:
        InvalidRequestError: if a curve is not found.
    """
    published, here = published_curves(), measured_curves(model)[:1]
    if not words:
        return [*here, *published.values()]
    found = []
    for word in words:
        path = Path(os.path.expanduser(word))
        if word in published:
            found.append(published[word])
        elif word == HERE:
            if not here:
                raise InvalidRequestError(
                    f"The costs of {model} were not measured on this machine yet; run `bench cost` "
                    "first."
                )
            found += here
        elif path.is_file():
            found.append(read_curve(path))
        else:
            raise InvalidRequestError(
                f"There is no cost curve {word}; give a file or one of {HERE}, "
                f"{', '.join(published)}."
            )
    return found


def read_curve(path: Path) -> NamedCurve:
    """Reads a curve from a file: what `bench cost --json` prints, or a published curve's form.

    Raises:
        InvalidRequestError: if the file cannot be read, or holds no curve.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "relative" in data:
            return _published({"name": path.stem, "source": path.name} | data)
        curve = CostCurve.from_json(data.get("curve", data) if isinstance(data, dict) else data)
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}.") from error
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidRequestError(
            f"{path} holds no cost curve ({error}); `bench cost --json` prints one."
        ) from error
    parts = (data.get("machine"), data.get("model"))
    facts = [part.get(name) for part in parts if isinstance(part, dict) for name in _ABOUT]
    about = ", ".join(str(fact) for fact in facts if fact) or path.name
    return NamedCurve(path.stem, curve, about, path.name)


def _published(data: dict[str, Any]) -> NamedCurve:
    curve = relative_curve(data)
    facts = [str(data[part]) for part in ("chip", "model", "quantization") if part in data]
    about = ", ".join([*facts, *([f"mlx {data['mlx']}"] if "mlx" in data else [])])
    return NamedCurve(str(data["name"]), curve, about, str(data["source"]), relative=True)


def about_lines(curves: Sequence[NamedCurve]) -> Iterator[str]:
    """One line for each curve: its name, what it was measured on, and by whom."""
    width = max(len(curve.name) for curve in curves)
    for curve in curves:
        yield f"{curve.name:<{width}}  {curve.about} ({curve.source})"
