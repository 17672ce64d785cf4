"""`doctor` on a tiny model whose costs are given, not measured."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.bench import device_report
from akunu_py.calibration import measure as calibration
from akunu_py.calibration.row_classes import RowClassSearch
from akunu_py.errors import ContextOverflowError
from akunu_py.package import CACHE_VARIABLE
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from akunu_py.planning.row_class import FREE, RowClass
from tests.metal import IS_SIMULATED
from tests.planning.curves import LINEAR, STEPPED

Doctor = Callable[..., str]


@pytest.fixture
def doctor(
    tiny_model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    """Runs the command on a machine whose costs are given, and returns what it prints."""

    def run(
        curve: CostCurve,
        *words: str,
        load: float = 0.0,
        alike: dict[float, RowClass | None] | None = None,
    ) -> str:
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
        monkeypatch.setattr(calibration, "other_load", lambda: load)
        monkeypatch.setattr(calibration, "measure_cost_curve", lambda *_, **__: curve)
        monkeypatch.setattr(RowClassSearch, "find", lambda *given: alike and alike[given[-1]])
        assert main(["doctor", "--model", str(tiny_model_dir), *words]) == 0
        return capsys.readouterr().out

    return run


def test_it_reports_everything_and_ends_with_the_payoff(doctor: Doctor) -> None:
    lines = doctor(STEPPED).splitlines()
    names = [line.split()[0] for line in lines if line[:1].strip()]
    assert names[:6] == ["device", "memory", "blas", "software", "model", "weights"]
    assert {"cost", "settings"} <= set(names)
    assert lines[-1].startswith("Drafting pays here from 10% acceptance, with ")


@pytest.mark.parametrize(
    ("alike", "said"),
    [
        (RowClass(), "identical rows at a lower cost than blocks. With --exact"),
        (RowClass(rows=90, seconds=2), "than blocks (90 rows compared in 2 s). With --exact"),
        (
            RowClass(1, ((0, 33),)),
            "not batched, drafts change no token, which costs 0%",
        ),
        (RowClass(1, ((0, 33),)), "and the text is mlx-lm's"),
        (RowClass(6, ((0, 8),)), "With --exact drafts change no token, which costs 89%"),
        (RowClass(6, ((0, 8),)), "and the text is that of steps padded to 6 tokens"),
    ],
)
def test_it_says_what_exact_answers_cost(doctor: Doctor, alike: RowClass, said: str) -> None:
    assert said in doctor(STEPPED, alike={FREE: alike})
    assert CostCurve.from_json(json.loads(doctor(STEPPED, "--json"))["curve"]).row_class == alike


def test_what_takes_minutes_is_left_to_bench_cost(doctor: Doctor) -> None:
    """Forward passes that cost more than nothing are not looked for."""
    assert "`bench cost` measures what --exact costs" in doctor(STEPPED)


def test_it_advises_against_drafting_if_it_does_not_pay(doctor: Doctor) -> None:
    found = json.loads(doctor(LINEAR, "--json"))
    assert found["recommended"]["drafter"] == "none"
    assert not found["payoff"]["most_drafts"]
    assert "does not pay" in found["payoff"]["sentence"]
    assert found["machine"]["mlx"]
    assert CostCurve.from_json(found["curve"]).levels == LINEAR.levels


@pytest.mark.skipif(IS_SIMULATED, reason="who wants the cores says nothing of a GPU")
def test_costs_of_a_busy_machine_lead_to_no_verdict(doctor: Doctor) -> None:
    said = doctor(STEPPED, load=100.0)
    assert "too busy to trust" in said
    assert "run `doctor` on an idle machine" in said
    assert "Drafting pays" not in said


def test_a_busy_machine_is_named_and_nothing_is_claimed(doctor: Doctor) -> None:
    falling = CostCurve((CostLevel(128, 0.04, ((1, 0.043), (2, 0.02), (33, 0.001))),))
    found = json.loads(doctor(falling, "--json"))
    assert "curve" not in found
    assert "busy" in found["costs_unknown"]
    assert found["recommended"]["drafter"] == "auto"


class TestReport:
    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_report, "_PROMPTS", 1)
        monkeypatch.setattr(device_report, "_WORKLOADS", ("edit",))
        for name in ("_IDENTITY_TOKENS", "_SPEEDUP_TOKENS"):
            monkeypatch.setattr(device_report, name, range(4, 9))
        monkeypatch.setattr(device_report, "_PAUSE_S", 0.0)
        monkeypatch.setattr(device_report, "_TOKENS", 4)

    def test_it_writes_figures_and_neither_paths_nor_prompts(
        self, doctor: Doctor, tiny_model_dir: Path, tmp_path: Path
    ) -> None:
        printed = doctor(STEPPED, "--report", str(tmp_path / "mac.md"))
        written = [(tmp_path / f"mac{suffix}").read_text() for suffix in (".md", ".json")]
        assert printed.strip() == written[0].strip()
        found = json.loads(written[1])
        assert found["complete"]
        assert found["model"]["name"] == tiny_model_dir.name
        assert found["identity"]["prompts"] == 4
        assert found["identity"]["differences"] == []
        assert {row["answers"] for row in found["speedup"]} == {"own", "forced"}
        for row in found["speedup"]:
            assert row["shares"] is None or 0 < row["shares"]["building"] < 1
        assert [check["step"] for check in found["first_hour"]] == [4, 6, 7, 8, 5, 5]
        assert all(check["values"] for check in found["first_hour"])
        assert "longest pause of another thread" in written[0]
        for text in written:
            assert str(tiny_model_dir.parent) not in text
            assert str(Path.home()) not in text
            assert "Rename" not in text

    def test_a_step_that_fails_loses_no_other(
        self, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: object) -> None:
            raise ContextOverflowError("It does not fit.")

        def fail(_: object) -> None:
            raise RuntimeError(f"in {tmp_path}")

        monkeypatch.setattr(device_report, "_prefill_chunks", refuse)
        monkeypatch.setattr(device_report, "_other_thread", fail)
        doctor(STEPPED, "--report", str(tmp_path / "mac"))
        found = json.loads((tmp_path / "mac.json").read_text())
        assert found["complete"]
        assert [check["found"] for check in found["first_hour"]][2:4] == [
            "refused: It does not fit.",
            "failed: RuntimeError",
        ]

    def test_an_interrupt_leaves_what_was_found(
        self, doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def find(_engine: object, index: int, *_: object) -> list[object]:
            if index == 3:
                raise KeyboardInterrupt
            return []

        monkeypatch.setattr(device_report, "find_differences", find)
        doctor(STEPPED, "--report", str(tmp_path / "mac"))
        found = json.loads((tmp_path / "mac.json").read_text())
        assert not found["complete"]
        assert found["identity"]["prompts"] == 3
        assert found["speedup"] is None
        assert CostCurve.from_json(found["curve"]).levels == STEPPED.levels
        assert "interrupted" in (tmp_path / "mac.md").read_text()

    @pytest.mark.parametrize(
        ("path", "sentence"),
        [("missing/mac", "no folder"), (".", "is a folder"), ("/", "is a folder")],
    )
    def test_a_report_that_cannot_be_written_is_refused_at_once(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        path: str,
        sentence: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["doctor", "--model", str(tmp_path), "--report", path]) == 2
        assert sentence in capsys.readouterr().err
