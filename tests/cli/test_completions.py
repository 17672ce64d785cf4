"""What is made of the declared options for shells and for `man`: every command and every option."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.cli.parser import COMMANDS, options_of
from akunu_py.option_field import Option

BASH = """
source completions
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_akunu_py
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'source completions; complete -C "$argv"'
CASES = {
    "": {command.name.split()[0] for command in COMMANDS},
    "bench ": {"cost", "speedup", "replay"},
    "chat --no-m": {"--no-mtp", "--no-memory"},
    "chat --drafter ng": {"ngram"},
    "serve --log-level D": {"DEBUG"},
    "chat --model em": {"ember"},
    "show em": {"ember"},
    "doctor --report fi": {"file"},
    "completions ": {"bash", "zsh", "fish"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file, and the program on the PATH."""
    (tmp_path / "file").touch()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "akunu-py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m akunu_py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    assert main(["completions", shell]) == 0
    (folder / "completions").write_text(capsys.readouterr().out)
    for line, expected in CASES.items():
        typed = f"akunu-py {line}"
        words = [BASH, "bash", *typed.split(" ")] if shell == "bash" else [FISH, typed]
        done = subprocess.run(
            [shell, "-c", *words], cwd=folder, check=True, capture_output=True, text=True
        )
        assert {found.partition("\t")[0] for found in done.stdout.split("\n")} - {""} == expected
        assert done.stderr == ""


def test_bash_runs_nothing_that_a_name_spells(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["completions", "bash"])
    (folder / "completions").write_text(capsys.readouterr().out)
    name = "a/$(touch harm) it's"
    (folder / "names").write_text(f"{name}\n")
    (folder / "bin" / "akunu-py").write_text("#!/bin/sh\ncat names\n")
    words = ["bash", "akunu-py", "chat", "--model", "a"]
    done = subprocess.run(
        ["bash", "-c", BASH, *words], cwd=folder, check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (f"{name}\n", "")
    assert not (folder / "harm").exists()


def test_zshs_script_knows_all_options_and_looks_models_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["completions", "zsh"]) == 0
    script = capsys.readouterr().out
    flags = {str(option.flag) for option in declared()}
    assert all(flag in script for flag in flags if flag.startswith("-"))
    assert "compadd -- ${(f)" in script
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, check=True)


def test_the_manual_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    for command in COMMANDS:
        assert f".SS {command.name}\n" in page
    for option in declared():
        flags = [str(option.flag), option.short, option.off and option.off[0]]
        assert all(flag.replace("-", r"\-") in page for flag in flags if flag)
    assert all(line.startswith((".TH ", ".SH", ".SS ", ".TP", ".B "))
               for line in page.splitlines() if line.startswith((".", "'")))  # fmt: skip


def test_names_alone_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--names"]) == 0
    assert "ember" in capsys.readouterr().out.splitlines()
    assert main(["list", "--names", "--json"]) == 2
    assert "omit --json" in capsys.readouterr().err


def declared() -> list[Option]:
    return [option for command in COMMANDS for option in options_of(command.settings)]
