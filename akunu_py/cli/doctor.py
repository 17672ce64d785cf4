"""`doctor`: the machine, the model, what forward passes cost, and whether drafting pays here."""

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from akunu_py.bench.cost_report import CostReport, curve_lines, exactness_of
from akunu_py.bench.measurement import describe_machine, describe_model, write_report
from akunu_py.cli.loading import find_row_class_with_bar, load_engine, measure_costs_with_bar
from akunu_py.cli.render import ProgressBar, count, tell
from akunu_py.cli.settings import DoctorSettings
from akunu_py.errors import BackendError, InvalidRequestError
from akunu_py.machine.device_memory import free_device_bytes
from akunu_py.planning.cost_curve import MEASURED
from akunu_py.planning.row_class import FREE
from akunu_py.planning.theory import Payoff

if TYPE_CHECKING:
    from akunu_py.engine import Engine
    from akunu_py.model.target_model import TargetModel
    from akunu_py.planning.cost_curve import CostCurve

_NAME_WIDTH: Final = 10
_MEBI: Final = 1 << 20
_LEAST_CONTEXT: Final = 512
_GUESSES: Final = 16
"""How many guesses by a head are timed; the first few are slower."""
_NO_HEAD: Final = (
    "the configuration names a drafting head (MTP), but none is loaded; if this conversion lacks "
    "it, `--mtp PATH` loads it from the original repository"
)

_UNKNOWN: Final[dict[str, Any]] = {
    "drafter": "auto",
    "num_draft_tokens": None,
    "why": "the defaults; run `doctor` on an idle machine to see whether drafting pays",
}
"""What to recommend while the costs are not known well."""


def run(settings: DoctorSettings) -> int:
    """Prints the findings; the last line says whether drafting pays."""
    if settings.report is not None:
        return _write_report(settings, settings.report)
    findings, lines = _examine(load_engine(settings.model))
    print(json.dumps(findings) if settings.as_json else "\n".join(lines))
    return 0


def _write_report(settings: DoctorSettings, path: Path) -> int:
    if not path.name:
        raise InvalidRequestError(f"{path} is a folder; give the report a file name in it.")
    if not os.access(path.parent, os.W_OK):  # before the measurement, which takes long
        raise InvalidRequestError(f"There is no folder {path.parent} that you can write to.")
    engine = load_engine(settings.model)
    if engine.context_limit < _LEAST_CONTEXT:
        raise InvalidRequestError(f"A report needs a context of {_LEAST_CONTEXT} tokens or more.")
    from akunu_py.bench.device_report import CONTEXTS, COSTS_S, make_report  # noqa: PLC0415

    tell("Measuring for a few minutes; Ctrl-C stops and reports what was found so far.")
    curve = measure_costs_with_bar(engine, COSTS_S, CONTEXTS)
    curve = find_row_class_with_bar(engine, curve)
    cost = CostReport(describe_machine(engine.backend), describe_model(engine), curve)
    with ProgressBar(sys.stderr, "answering", counts=True) as bar:
        report = make_report(engine, cost, bar)
    found = report.as_json()
    text = write_report(path, report.title, report.markdown(), found)
    tell(f"Wrote {path}.md and {path}.json. They contain no paths, prompts or answers.")
    print(json.dumps(found) if settings.as_json else text)
    return 0


def _examine(engine: "Engine") -> tuple[dict[str, Any], list[str]]:
    curve, problem = _costs(engine)
    machine, model = describe_machine(engine.backend), describe_model(engine)
    free = free_device_bytes()
    findings: dict[str, Any] = {
        "machine": machine, "model": model, "free_memory_bytes": free, "notices": engine.notices,
    }  # fmt: skip
    lines = _machine_lines(machine, model, free)
    if curve is None:
        findings["recommended"] = _UNKNOWN if problem else {"drafter": "none"}
        if problem:
            findings["costs_unknown"] = problem
            lines += [_line("cost", problem), _line("settings", _UNKNOWN["why"])]
        return findings, [*lines, *engine.notices]
    report = CostReport(machine, model, curve)
    lines += [
        _line("" if index else "cost", costs) for index, costs in enumerate(curve_lines(curve))
    ]
    lines.append(_line("", _conditions(curve)))
    lines.append(_line("exact", exactness_of(curve)))
    trusted = curve.doubt <= MEASURED
    if trusted and engine.model.head is not None:
        findings["head"] = found = _head_costs(engine.model, curve)
        pays = "does not pay here"
        if found["break_even"] < 1.0:
            pays = f"pays from {max(0.0, found['break_even']):.0%} acceptance on"
        lines.append(_line("guesses", f"by the head: {1e3 * found['guess_s']:.2f} ms each; {pays}"))
    recommended = _recommend(report.payoff) if trusted else _UNKNOWN
    lines.append(_line("settings", recommended["why"]))
    findings |= report.as_json() | {"recommended": recommended}
    verdict = ["", str(report.payoff)] if trusted else []
    return findings, [*lines, *engine.notices, *verdict]


def _costs(engine: "Engine") -> "tuple[CostCurve | None, str]":
    """The costs if they are known well or can be measured now; else None and the reason.

    The reason is empty for a model that cannot draft: the engine's notices say why.
    """
    from akunu_py.calibration.measure import find_cost_curve  # noqa: PLC0415  (needs MLX)

    if engine.model.why_no_drafts:
        return None, ""
    try:
        known = find_cost_curve(engine.model, engine.backend)
        is_known = known.measured_at is not None and known.doubt <= MEASURED
        curve = known if is_known else measure_costs_with_bar(engine)
        return find_row_class_with_bar(engine, curve, FREE), ""  # others take minutes
    except BackendError as error:
        return None, str(error)


def _head_costs(model: "TargetModel", curve: "CostCurve") -> dict[str, float]:
    """The seconds of one guess by the model's head, and the acceptance rate from which on a round
    with one guess pays at short contexts."""
    import mlx.core as mx  # noqa: PLC0415  (takes a while)

    assert model.head is not None
    cache, times = model.make_cache(2 * _GUESSES), []
    model.forward(mx.array([0]), cache)
    states = model.take_hidden()
    pairs = model.head.make_cache(2 * _GUESSES)
    for _ in range(_GUESSES):
        begun = perf_counter()
        states = model.head(mx.array([0]), states, pairs)
        mx.eval(states, mx.argmax(model.head.logits(states)))
        times.append(perf_counter() - begun)
    guess_s = median(times)
    return {
        "guess_s": guess_s,
        "break_even": (curve.verify_s(2, _GUESSES) + guess_s) / curve.decode_s(_GUESSES) - 1.0,
    }


def _conditions(curve: "CostCurve") -> str:
    if curve.measured_at is None:
        return "`bench cost` measures again"
    day = datetime.fromtimestamp(curve.measured_at).astimezone().strftime("%Y-%m-%d %H:%M")
    busy = (
        "" if curve.doubt <= MEASURED else ": too busy to trust; will be measured again when idle"
    )
    load = "" if curve.load is None else f", with {curve.load:.2f} processes per core"
    return f"measured {day}{load}{busy}"


def _recommend(payoff: Payoff) -> dict[str, Any]:
    if payoff.pays:
        why = "the defaults: --drafter auto, with num_draft_tokens chosen in each round"
        return {"drafter": "auto", "num_draft_tokens": None, "why": why}
    why = "the defaults, which do not draft here; --no-speculate does the same"
    return {"drafter": "none", "num_draft_tokens": 0, "why": why}


def _machine_lines(machine: dict[str, Any], model: dict[str, Any], free: int) -> list[str]:
    blas, ranks = machine["blas"], None
    if "ranks" in model:
        ranks = f"{model['ranks']}; a broadcast takes {1e3 * model['broadcast_s']:.2f} ms"
    facts = [
        ("device", f"{machine['device']}, {machine['chip']}, {count(machine['cores'], 'core')}"),
        ("memory", f"{machine['memory_gib']} GiB, {free / 2**30:.1f} GiB free"),
        ("blas", f"{blas}, {count(machine['blas_threads'], 'thread')}" if blas else "the system's"),
        (
            "software",
            f"mlx {machine['mlx']}, mlx-lm {machine['mlx_lm']}, Python {machine['python']}",
        ),
        ("model", f"{model['name']}, context {model['context_length']:,}"),
        ("ranks", ranks),
        ("weights", f"{model['layout']}, {model['parameter_bytes'] / _MEBI:,.0f} MiB in memory"),
        ("rollback", model["after_rejection"]),
        ("kv cache", model["kv_cache"]),
        ("head", model["head"] or (_NO_HEAD if model["names_head"] else "none is loaded")),
    ]
    return [_line(name, fact) for name, fact in facts if fact]


def _line(name: str, fact: str) -> str:
    return f"{name:<{_NAME_WIDTH}}{fact}"
