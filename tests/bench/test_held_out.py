"""What a memory of a project would bring: how the project is divided."""

import json
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.bench.replay import UNIT_COSTS, Policy, replay_policies
from akunu_py.bench.workloads import hold_out
from akunu_py.calibration.cost_store import NamedCurve
from akunu_py.errors import InvalidRequestError
from akunu_py.model.loading import load_tokenizer

BODY = """
def read_{n}(path):
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    values_{n} = [float(line) for line in lines if line]
    return sum(values_{n}) / len(values_{n})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for number in range(10):
        (folder / f"m{number}.py").write_text(BODY.replace("{n}", str(number)))
    return folder


def test_a_memory_of_the_other_files_raises_the_tokens_of_a_forward(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "memory").mkdir()
    held_out = hold_out(project, load_tokenizer("ember"), tmp_path / "memory")
    assert len(held_out.cases) == 2
    curves = [NamedCurve("unit", UNIT_COSTS, "", "")]
    rows = replay_policies(
        {"project": held_out.cases},
        [Policy("auto", 8), Policy("ngram", 8)],
        curves,
        memories={"project": held_out.memory},
    )
    found = {str(row.policy): row.result.tokens_per_forward for row in rows}
    assert list(found) == [
        *("auto, num_draft_tokens=8", "auto with memory, num_draft_tokens=8"),
        "ngram, num_draft_tokens=8",
    ]
    without, with_memory, _ = found.values()
    assert with_memory > 1.5 * without


def test_the_command_shows_both(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "replay", "--memory", str(project), "--drafter", "auto", "--costs", "m4-pro"]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["memory"] for row in rows] == [False, True]
    assert rows[0]["tokens_per_forward"] < rows[1]["tokens_per_forward"]
    assert main([*words, "--drafter", "ngram"]) == 2
    assert "--memory needs the drafter auto" in capsys.readouterr().err


def test_a_project_of_few_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="too few files"):
        hold_out(tmp_path, load_tokenizer("ember"), tmp_path)
