"""`doctor` on a tiny model whose costs are given, not measured."""

import json
from pathlib import Path

import pytest

from akunu_py import calibration
from akunu_py.__main__ import main
from akunu_py.package import CACHE_VARIABLE
from akunu_py.planning.cost_curve import CostCurve
from tests.planning.curves import LINEAR, STEPPED


def costs_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, curve: CostCurve) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: curve)


def test_it_reports_everything_and_ends_with_the_payoff(
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs_are(monkeypatch, tmp_path, STEPPED)
    assert main(["doctor", "--model", str(tiny_model_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line[:1].strip()]
    assert names[:6] == ["device", "memory", "blas", "software", "model", "weights"]
    assert {"cost", "settings"} <= set(names)
    assert lines[-1].startswith("Drafting pays here from 10% acceptance, with ")


def test_it_advises_against_drafting_if_it_does_not_pay(
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs_are(monkeypatch, tmp_path, LINEAR)
    assert main(["doctor", "--json", "--model", str(tiny_model_dir)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommended"]["drafter"] == "none"
    assert not found["payoff"]["most_drafts"]
    assert "does not pay" in found["payoff"]["sentence"]
    assert found["machine"]["mlx"]
    assert CostCurve.from_json(found["curve"]) == LINEAR
