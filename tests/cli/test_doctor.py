"""`doctor` and `bench cost` on a tiny model whose costs are given, not measured."""

import json
import sys
from pathlib import Path

import pytest

from akunu_py import calibration
from akunu_py.__main__ import main
from akunu_py.cli.bench_settings import BenchSettings, CostSettings, DoctorSettings
from akunu_py.cli.parser import parse
from akunu_py.errors import InvalidRequestError
from akunu_py.package import CACHE_VARIABLE
from akunu_py.planning.cost_curve import CostCurve
from tests.planning.curves import LINEAR, STEPPED


def costs_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, curve: CostCurve) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: curve)


class TestDoctor:
    def test_tells_all_and_ends_with_the_verdict(
        self,
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
        assert lines[-1].startswith("Drafting pays here from 10% acceptance; K up to ")

    def test_advises_against_drafting_where_it_does_not_pay(
        self,
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


class TestBenchCost:
    def test_tables(
        self,
        tiny_model_dir: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        costs_are(monkeypatch, tmp_path, STEPPED)
        assert main(["bench", "cost", "--model", str(tiny_model_dir)]) == 0
        out = capsys.readouterr().out
        assert "1, pipelined" in out
        assert "break-even" in out
        assert "3.10" in out
        assert "Drafting pays here" in out

    def test_json_and_a_plot(
        self,
        tiny_model_dir: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        costs_are(monkeypatch, tmp_path, STEPPED)
        plot = tmp_path / "cost.svg"
        words = ["bench", "cost", "--json", "--plot", str(plot), "--model", str(tiny_model_dir)]
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["expected_accepted"]["4"]["0.7"] == pytest.approx(1.77, abs=0.005)
        assert found["drafts"][3]["break_even_acceptance"] == pytest.approx(0.1, abs=0.01)
        assert plot.read_text().startswith("<?xml")

    def test_what_it_measured_is_what_the_engine_goes_by(
        self, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        costs_are(monkeypatch, tmp_path, STEPPED)
        assert main(["bench", "cost", "--json", "--model", str(tiny_model_dir)]) == 0
        assert len(list((tmp_path / "cache" / "costs").iterdir())) == 1

    @pytest.mark.parametrize(
        ("plot", "sentence"),
        [
            ("cost", "end its name with .png"),
            ("cost.doc", "end its name"),
            ("no/x.png", "no folder"),
        ],
    )
    def test_a_plot_that_cannot_be_is_refused_at_once(
        self, tmp_path: Path, plot: str, sentence: str
    ) -> None:
        from akunu_py.bench.plots import check_can_plot  # noqa: PLC0415

        with pytest.raises(InvalidRequestError, match=sentence):
            check_can_plot(tmp_path / plot)

    def test_a_missing_matplotlib_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.backends", None)
        assert main(["bench", "cost", "--plot", str(tmp_path / "cost.png")]) == 2
        assert "pip install 'akunu-py[plot]'" in capsys.readouterr().err


class TestWords:
    def test_defaults(self) -> None:
        settings = parse(["bench", "cost"]).settings
        assert isinstance(settings, BenchSettings)
        assert isinstance(settings.settings, CostSettings)
        assert (settings.measure, settings.settings.plot) == ("cost", None)
        assert isinstance(parse(["doctor"]).settings, DoctorSettings)

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("bench", "required: WHAT"),
            ("bench dance", "invalid choice: 'dance'"),
            ("bench cost --seconds 0", "above 0"),
            ("bench cost --seconds nan", "above 0"),
            ("doctor --plot x.png", "doctor has no option --plot"),
        ],
    )
    def test_refusals(self, words: str, sentence: str) -> None:
        with pytest.raises(InvalidRequestError) as refusal:
            parse(words.split())
        assert sentence in str(refusal.value)
