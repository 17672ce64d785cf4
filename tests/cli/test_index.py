"""`index` and `--project` as a user runs them, on the tiny model."""

import json
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.package import CACHE_VARIABLE


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text("def area(width, height):\n    return width * height\n")
    return folder


def test_a_project_is_learnt_listed_used_and_forgotten(
    project: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(tiny_model_dir)]
    assert main(["index", str(project), *model]) == 0
    assert "1 file in memory, 1 of them new" in capsys.readouterr().out
    assert main(["index", "--stats"]) == 0
    assert f"{project}  (1 file, used" in capsys.readouterr().out
    answers = []
    for words in ([], ["--project", str(project)]):
        command = ["generate", "-p", "def area(", "-m", "24", "--json", *model, *words]
        assert main(command) == 0
        answers.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert answers[0] == answers[1]
    assert main(["index", "--forget", str(project)]) == 0
    assert main(["index", "--list"]) == 0
    assert "0 projects" in capsys.readouterr().out
    assert main(["generate", "-p", "x", "--project", str(project), *model]) == 2
    assert "has not been indexed; run `akunu-py index" in capsys.readouterr().err
    assert main(["index", "--forget-all"]) == 0


def test_what_is_left_out_is_counted_and_kept_if_named(
    project: Path,
    tiny_model_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(project)
    (project / ".env").write_text("A=1\n")
    (project / "vault.yml").write_text("a: 1\n")
    (project / "a.py").write_text("key = 'AKIA" + "ABCDEFGHIJKLMNOP'\n")
    model = ["--model", str(tiny_model_dir)]
    assert main(["index", str(project), *model]) == 0
    said = "Left out: 2 as likely secrets, 1 hidden; name a file to include it."
    assert said in capsys.readouterr().err
    assert main(["index", ".", ".env", "vault.yml", *model]) == 0
    printed = capsys.readouterr()
    assert "3 files in memory" in printed.out
    assert "Left out: 1 as likely secrets; name" in printed.err
    assert main(["index", str(project / ".env"), *model]) == 2
    assert ".env is in none of the given folders" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["index"], "index takes one of: folders, --list"),
        (["index", ".", "--list"], "index takes one of: folders, --list"),
        (["index", "--forget", "nowhere"], "--forget takes the folder of a project"),
        (["index", "nowhere"], "There is no folder nowhere"),
        (["index", "/"], "/ is not a project; give a folder in it."),
        (["index", "~"], "is not a project; give a folder in it."),
        (["chat", "--project", ".", "--no-speculate"], "--project needs the drafter auto"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_makes_no_sense_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
