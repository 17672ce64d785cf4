"""Known costs: CostStore keeps what was measured on this machine; published curves say what to
expect until then.

The store has one file per machine, model and library version. Damaged, foreign and implausible
files are ignored, and so is a folder that cannot be written to. Published curves are relative:
their unit of time is a forward pass over one token, which is enough for planning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from time import time
from typing import Any, Final

from akunu_py.errors import InvalidRequestError
from akunu_py.package import cache_folder, make_private, open_file, write_atomically
from akunu_py.planning.cost_curve import DOUBTFUL, CostCurve, CostLevel

_FORMAT: Final = "akunu-py cost curve"
_VERSION: Final = 3
_MAX_FILE_BYTES: Final = 1 << 20

_VALID_S: Final = 30 * 86_400.0
"""Older curves are distrusted: systems, drivers and cooling change."""

_BUSY: Final = 0.75
"""A curve measured with more processes per core is distrusted."""

HERE: Final = "here"
"""The name of the curve that was measured on this machine."""

_CPU: Final = "cpu-25m"
_OTHERWISE: Final = "m4-pro-8b"
"""For unknown chips: a curve on which drafts sometimes pay."""


@dataclass(frozen=True)
class CostKey:
    """All that a cost curve depends on; if any of it differs, the curve is measured again.

    `akunu` is the version of this engine, because a later one may run a model faster; `fingerprint`
    is a hash of the model's configuration.
    """

    device: str
    chip: str
    blas: str | None
    threads: int
    mlx: str
    akunu: str
    model: str
    fingerprint: str
    parameter_bytes: int
    layout: str
    kv_cache: str = "None"

    @property
    def file_name(self) -> str:
        words = json.dumps(asdict(self), sort_keys=True)
        return f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"


@dataclass(frozen=True)
class NamedCurve:
    """A curve, with what it was measured on and by whom. A `relative` one has a pass over one token
    as its unit of time instead of a second."""

    name: str
    curve: CostCurve
    about: str
    source: str
    relative: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.about} ({self.source})"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "about": self.about,
            "source": self.source,
            "unit": "a forward pass over one token" if self.relative else "seconds",
            "curve": self.curve.as_json(),
        }


class CostStore:
    """The curves measured so far, in a folder; by default, in the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "costs"

    def path(self, key: CostKey) -> Path:
        return self._folder / key.file_name

    def load(self, key: CostKey) -> CostCurve | None:
        """The curve measured under exactly this key, passed through `judged`; None if there is no
        valid one."""
        known = _read(self.path(key))
        return None if known is None or known[0] != key else judged(known[1])

    def curves_of(self, model: str) -> list[NamedCurve]:
        """All valid curves of a model, the latest first."""
        found: list[tuple[float, NamedCurve]] = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                if (known := _read(path)) is not None and known[0].model == model:
                    key, curve = known
                    blas = [key.blas] if key.blas else []
                    about = ", ".join([key.chip, *blas, model, key.layout, f"mlx {key.mlx}"])
                    named = NamedCurve(HERE, curve, about, "measured on this machine")
                    found.append((path.stat().st_mtime, named))
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [named for _, named in found]

    def save(self, key: CostKey, curve: CostCurve) -> None:
        """Saves a curve if the folder allows it; raises a ValueError if the curve is
        implausible."""
        curve.check_plausible()
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            "key": asdict(key),
            "curve": curve.as_json(),
        }
        with suppress(OSError):
            make_private(self._folder)
            write_atomically(self.path(key), json.dumps(content, indent=1) + "\n")


def judged(curve: CostCurve) -> CostCurve:
    """The curve, marked as doubtful if it is old or was measured on a busy machine."""
    now = time()
    age_s = now - (now if curve.measured_at is None else curve.measured_at)
    if 0.0 <= age_s < _VALID_S and (curve.load or 0.0) <= _BUSY:
        return curve
    return replace(curve, doubt=DOUBTFUL)


def _read(path: Path) -> tuple[CostKey, CostCurve] | None:
    try:
        with open_file(path) as file:
            text = file.read(_MAX_FILE_BYTES + 1)
        if len(text) > _MAX_FILE_BYTES:
            return None
        content = json.loads(text)
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            return None
        return CostKey(**content["key"]), CostCurve.from_json(content["curve"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def published_curves() -> dict[str, NamedCurve]:
    """The curves that come with the package, by name."""
    text = files("akunu_py.calibration").joinpath("published_costs.json").read_text("utf-8")
    curves = map(_published, json.loads(text)["curves"])
    return {curve.name: curve for curve in curves}


def _published(data: dict[str, Any]) -> NamedCurve:
    relative = {int(tokens): float(cost) for tokens, cost in data["relative"].items()}
    rounds = tuple((tokens, cost / relative[1]) for tokens, cost in sorted(relative.items()))
    facts = [str(data[part]) for part in ("chip", "model", "quantization") if part in data]
    about = ", ".join([*facts, *([f"mlx {data['mlx']}"] if "mlx" in data else [])])
    curve = CostCurve((CostLevel(0, 1.0, rounds),))
    return NamedCurve(str(data["name"]), curve, about, str(data["source"]), relative=True)


def find_curves(words: Sequence[str], model: str) -> list[NamedCurve]:
    """The named curves: published ones, or `here` for a model's own; without names, all of them. An
    unknown name is refused."""
    published, here = published_curves(), CostStore().curves_of(model)[:1]
    if not words:
        return [*here, *published.values()]
    found = []
    for word in words:
        if word in published:
            found.append(published[word])
        elif word == HERE:
            if not here:
                raise InvalidRequestError(
                    f"The costs of {model} have not been measured here yet; run `bench cost` first."
                )
            found += here
        else:
            raise InvalidRequestError(
                f"There is no cost curve {word}; choose one of {HERE}, {', '.join(published)}."
            )
    return found


def expected_curve(device: str, chip: str) -> CostCurve:
    """The published costs of a chip, of its generation, or else of a typical chip; doubtful."""
    wanted = _CPU if device == "cpu" else _OTHERWISE
    known = published_curves().values()
    best = max(known, key=lambda named: (_kinship(chip, named.about), named.name == wanted))
    return replace(best.curve, doubt=DOUBTFUL)


def _kinship(chip: str, other: str) -> int:
    """2 for the same chip (`Apple M4 Pro`), 1 for its generation (`Apple M4`), else 0."""
    own, words = chip.split(), other.split(",", maxsplit=1)[0].split()
    if len(own) < 2 or own[:2] != words[:2]:
        return 0
    return 2 if own == words else 1
