"""Published cost curves: what to expect of a machine on which nothing was measured yet.

They are relative: their unit of time is a forward over one token, which planning needs no better.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any, Final

from akunu_py.planning.cost_curve import DOUBTFUL, CostCurve, CostLevel

_FILE: Final = "published_costs.json"
_GENERIC: Final = {"cpu": "cpu-25m"}
_OTHERWISE: Final = "m4-pro-8b"
"""For unknown chips: a curve with which drafts pay sometimes."""


def read_published() -> list[dict[str, Any]]:
    """The published curves, as the file describes them."""
    text = files("akunu_py.calibration").joinpath(_FILE).read_text(encoding="utf-8")
    curves: list[dict[str, Any]] = json.loads(text)["curves"]
    return curves


def relative_curve(data: dict[str, Any]) -> CostCurve:
    """The curve of one such description.

    Raises:
        LookupError, TypeError, ValueError: if it has another form.
    """
    relative = {int(tokens): float(cost) for tokens, cost in data["relative"].items()}
    rounds = tuple((tokens, cost / relative[1]) for tokens, cost in sorted(relative.items()))
    return CostCurve((CostLevel(0, 1.0, rounds),))


def expected_curve(device: str, chip: str) -> CostCurve:
    """The published costs of a chip, of its generation, or else of a usual chip; doubtful."""
    published = read_published()
    wanted = _GENERIC.get(device, _OTHERWISE)
    best = max(published, key=lambda data: (_kinship(chip, data["chip"]), data["name"] == wanted))
    return replace(relative_curve(best), doubt=DOUBTFUL)


def _kinship(chip: str, other: str) -> int:
    """3 for the same chip (`Apple M4 Pro`), 2 for its generation (`Apple M4`), else 0."""
    own, words = chip.split(), other.split(",", maxsplit=1)[0].split()
    common = next((n for n, (a, b) in enumerate(zip(own, words, strict=False)) if a != b), None)
    shared = min(len(own), len(words)) if common is None else common
    if shared < 2:
        return 0
    return 3 if shared == len(own) == len(words) else 2
