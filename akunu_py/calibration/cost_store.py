"""Known costs: CostStore keeps what was measured on this machine; published curves say what to
expect until then.

The store has one file per machine, model and library version. A damaged, foreign or implausible
file is ignored, and a folder that cannot be written to as well. Published curves are relative:
their unit of time is a forward over one token, which planning needs no better.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from time import time
from typing import Any, Final

from akunu_py.package import cache_folder, make_private, open_file, write_atomically
from akunu_py.planning.cost_curve import DOUBTFUL, CostCurve, CostLevel

_FORMAT: Final = "akunu-py cost curve"
_VERSION: Final = 2
_MAX_FILE_BYTES: Final = 1 << 20

_VALID_S: Final = 30 * 86_400.0
"""Older curves are doubted: systems, drivers and cooling change."""

_BUSY: Final = 0.75
"""With more processes per core, a curve is doubted."""

_CPU: Final = "cpu-25m"
_OTHERWISE: Final = "m4-pro-8b"
"""For unknown chips: a curve with which drafts pay sometimes."""


@dataclass(frozen=True)
class CostKey:
    """All that a cost curve depends on; if any of it differs, the curve is measured again.

    `akunu` is the version of this engine, which may run a model faster than an earlier one;
    `fingerprint` is a hash of the model's configuration.
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
    saves_power: bool = False

    @property
    def file_name(self) -> str:
        words = json.dumps(asdict(self), sort_keys=True)
        return f"{hashlib.sha256(words.encode()).hexdigest()[:24]}.json"


class CostStore:
    """The curves measured so far, in a folder; None takes the user's cache folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or cache_folder() / "costs"

    def path(self, key: CostKey) -> Path:
        return self._folder / key.file_name

    def load(self, key: CostKey) -> CostCurve | None:
        """The curve measured under exactly this key, as `judged`; None if there is no valid one."""
        known = _read(self.path(key))
        return None if known is None or known[0] != key else judged(known[1])

    def entries(self) -> list[tuple[CostKey, CostCurve]]:
        found: list[tuple[float, CostKey, CostCurve]] = []
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                if (known := _read(path)) is not None:
                    found.append((path.stat().st_mtime, *known))
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [(key, curve) for _, key, curve in found]

    def save(self, key: CostKey, curve: CostCurve) -> None:
        """Saves a curve, if that is possible; a ValueError if the curve is implausible."""
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
    """The curve, doubted if it is old or was measured on a busy machine."""
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


def read_published() -> list[dict[str, Any]]:
    """The published curves, as the file describes them."""
    text = files("akunu_py.calibration").joinpath("published_costs.json").read_text("utf-8")
    curves: list[dict[str, Any]] = json.loads(text)["curves"]
    return curves


def relative_curve(data: dict[str, Any]) -> CostCurve:
    """The curve of one such description."""
    relative = {int(tokens): float(cost) for tokens, cost in data["relative"].items()}
    rounds = tuple((tokens, cost / relative[1]) for tokens, cost in sorted(relative.items()))
    return CostCurve((CostLevel(0, 1.0, rounds),))


def expected_curve(device: str, chip: str) -> CostCurve:
    """The published costs of a chip, of its generation, or else of a usual chip; doubtful."""
    wanted = _CPU if device == "cpu" else _OTHERWISE
    best = max(
        read_published(), key=lambda data: (_kinship(chip, data["chip"]), data["name"] == wanted)
    )
    return replace(relative_curve(best), doubt=DOUBTFUL)


def _kinship(chip: str, other: str) -> int:
    """2 for the same chip (`Apple M4 Pro`), 1 for its generation (`Apple M4`), else 0."""
    own, words = chip.split(), other.split(",", maxsplit=1)[0].split()
    if len(own) < 2 or own[:2] != words[:2]:
        return 0
    return 2 if own == words else 1
