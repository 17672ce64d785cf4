"""Cost curves by name: published ones, and those of this machine.

A published curve is relative: its unit of time is a pass over one token, which is all that a
prediction needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from akunu_py.calibration.cost_store import CostStore, read_published, relative_curve
from akunu_py.errors import InvalidRequestError
from akunu_py.planning.cost_curve import CostCurve

HERE: Final = "here"
"""The name of the curve that was measured on this machine."""


@dataclass(frozen=True)
class NamedCurve:
    """A curve, and what it was measured on and by whom. The unit of time of a `relative` one is a
    pass over one token, instead of a second.
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
    """The curves that words name: published ones, or `here` for a model's own; without words, all
    of them. An unknown name is refused.
    """
    published, here = published_curves(), measured_curves(model)[:1]
    if not words:
        return [*here, *published.values()]
    found = []
    for word in words:
        if word in published:
            found.append(published[word])
        elif word == HERE:
            if not here:
                raise InvalidRequestError(
                    f"The costs of {model} were not measured on this machine yet; run `bench cost` "
                    "first."
                )
            found += here
        else:
            raise InvalidRequestError(
                f"There is no cost curve {word}; give one of {HERE}, {', '.join(published)}."
            )
    return found


def _published(data: dict[str, Any]) -> NamedCurve:
    curve = relative_curve(data)
    facts = [str(data[part]) for part in ("chip", "model", "quantization") if part in data]
    about = ", ".join([*facts, *([f"mlx {data['mlx']}"] if "mlx" in data else [])])
    return NamedCurve(str(data["name"]), curve, about, str(data["source"]), relative=True)


def about_lines(curves: Sequence[NamedCurve]) -> Iterator[str]:
    """One line for each curve: its name, what it was measured on, and by whom."""
    for curve in curves:
        yield f"- {curve.name}: {curve.about} ({curve.source})"
