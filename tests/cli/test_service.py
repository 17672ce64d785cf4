"""`service`, with programs that record what launchd and systemd are told, and its log."""

import os
import plistlib
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from akunu_py.__main__ import main
from akunu_py.cli import service
from akunu_py.cli.parser import parse
from tests.processes import run

FAKE = f"""#!{sys.executable}
import sys
from pathlib import Path

folder, words = Path(__file__).parent, sys.argv[1:]
with open(folder / "calls", "a") as calls:
    print(*words, file=calls)
fails = (folder / "fails").read_text().split()
if found := [word for word in words if word in fails]:
    fails.remove(found[0])
    (folder / "fails").write_text(" ".join(fails))
    sys.exit(f"no {{found[0]}}")
"""
SECRET = 'a "b" \\n $x 100% '
"""A key that must be quoted."""


class System:
    """A folder on the PATH with one program, and the home of a user."""

    def __init__(self, folder: Path, program: str) -> None:
        self.home, self._programs = folder / "home", folder / "programs"
        self.home.mkdir()
        self._programs.mkdir()
        (fake := self._programs / program).write_text(FAKE)
        fake.chmod(0o755)
        self.fails()

    def fails(self, *words: str) -> None:
        """Lets commands with these words fail, once for each."""
        (self._programs / "fails").write_text(" ".join(words))

    def calls(self) -> list[str]:
        """What the program was told since the last look."""
        path = self._programs / "calls"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def file(self, name: str) -> Path:
        (found,) = self.home.rglob(name)
        return found


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], System]:
    def make(program: str) -> System:
        made = System(tmp_path, program)
        monkeypatch.setenv("PATH", str(tmp_path / "programs"))
        monkeypatch.setenv("HOME", str(made.home))
        monkeypatch.setenv("HF_HOME", "/models of mine")
        monkeypatch.setattr(service, "sleep", lambda _: None)
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(name, raising=False)
        return made

    return make


def test_systemd_runs_it_with_its_options(system: Callable[[str], System]) -> None:
    systemd = system("systemctl")
    assert main(["service", "install", "--", "--port", "8081", "--api-key", SECRET]) == 0
    assert systemd.calls() == [
        "--user daemon-reload",
        "--user enable akunu-py.service",
        "--user restart akunu-py.service",
    ]
    unit = systemd.file("akunu-py.service")
    assert stat.S_IMODE(unit.stat().st_mode) == 0o600
    lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)
    assert lines["Environment"] == '"HF_HOME=/models of mine"'
    words = [it.replace("%%", "%") for it in shlex.split(lines["ExecStart"].replace("$$", "$"))]
    assert words[:5] == [sys.executable, "-P", "-m", "akunu_py", "serve"]
    settings = parse(words[4:]).settings
    assert (settings.server.port, settings.server.api_key) == (8081, SECRET)
    assert settings.log_file.parent.is_dir()

    assert main(["service", "stop"]) == main(["service", "start"]) == 0
    assert main(["service", "uninstall"]) == 0
    assert systemd.calls() == [
        "--user stop akunu-py.service",
        "--user start akunu-py.service",
        "--user disable --now akunu-py.service",
    ]
    assert not unit.exists()


@pytest.mark.parametrize("name", ["ends \\", "ends ", "100% $HOME %h", "a \"b\" 'c'", "\\n\ttab"])
def test_systemd_reads_the_folder_as_it_is(
    name: str, system: Callable[[str], System], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = system("systemctl")
    (folder := tmp_path / name).mkdir()
    monkeypatch.chdir(folder)
    assert main(["service", "install"]) == 0
    unit = systemd.file("akunu-py.service").read_text()
    lines = unit.replace("\\\n", " ").split("\n")  # as systemd.syntax(7) says
    read = dict(line.strip().split("=", 1) for line in lines if "=" in line)
    assert Path(read["WorkingDirectory"].replace("%%", "%")) == folder


def test_systemd_reads_the_program_as_it_is(
    system: Callable[[str], System], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    systemd = system("systemctl")
    monkeypatch.setattr(sys, "executable", "/100% $HOME/python")
    assert main(["service", "install", "--", "--api-key", SECRET]) == 0
    assert '\nExecStart="/100%% $HOME/python" "-P"' in systemd.file("*.service").read_text()
    for name in ("\\", '"', "'", "\t"):
        monkeypatch.setattr(sys, "executable", f"/a{name}/python")
        assert main(["service", "install"]) == 2
        assert "systemd cannot run a program named" in capsys.readouterr().err


def test_launchd_runs_it_once_the_one_before_has_ended(system: Callable[[str], System]) -> None:
    launchd, domain = system("launchctl"), f"gui/{os.getuid()}"
    launchd.fails("bootout", "bootstrap", "bootstrap")
    assert main(["service", "install", "--", "--port", "8081"]) == 0
    path = launchd.file("akunu-py.plist")
    agent, bootstrap = f"{domain}/akunu-py", f"bootstrap {domain} {path}"
    assert launchd.calls() == [f"bootout {agent}", *[bootstrap] * 3]
    described = plistlib.loads(path.read_bytes())
    assert described["ProgramArguments"][-2:] == ["--port", "8081"]
    assert described["StandardErrorPath"] in described["ProgramArguments"]
    assert described["EnvironmentVariables"]["HF_HOME"] == "/models of mine"

    launchd.fails("bootstrap", "bootout")
    assert main(["service", "start"]) == main(["service", "uninstall"]) == 0
    assert launchd.calls() == [bootstrap, f"kickstart {agent}", f"bootout {agent}"]
    assert not path.exists()


def test_the_status_is_that_of_the_system(system: Callable[[str], System]) -> None:
    systemd = system("systemctl")
    main(["service", "install"])
    systemd.fails("status")
    assert [main(["service", "status"]) for _ in range(2)] == [1, 0]


def test_the_log_is_shown_with_the_one_before(
    system: Callable[[str], System], capsys: pytest.CaptureFixture[str]
) -> None:
    systemd = system("systemctl")
    main(["service", "install"])
    unit = systemd.file("akunu-py.service").read_text()
    log = Path(unit.split('"--log-file" "')[1].split('"')[0])
    capsys.readouterr()
    assert main(["service", "logs"]) == 0
    assert "There is no log yet" in capsys.readouterr().err
    log.write_text("late\x1b[2J\n")
    log.with_name("serve.log.1").write_text("early\n")
    assert main(["service", "logs"]) == 0
    assert capsys.readouterr().out == "early\nlate␛[2J\n"


@pytest.mark.parametrize("program", ["systemctl", "launchctl"])
def test_what_the_file_cannot_hold_is_refused_but_can_be_uninstalled(
    program: str,
    system: Callable[[str], System],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = system(program)
    assert main(["service", "install", "--", "--model", "a\rb"]) == 2
    assert "control characters in an option" in capsys.readouterr().err
    assert not list(made.home.rglob("akunu-py*"))
    assert main(["service", "install", "--", "--chat-template", "{{ a }}\n\t"]) == 0
    file = made.file("akunu-py.*")
    file.chmod(0o644)
    assert main(["service", "install"]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (odd := tmp_path / "a\nExecStart=b").mkdir()
    monkeypatch.chdir(odd)
    assert main(["service", "install"]) == 2
    assert "control characters in this folder's name" in capsys.readouterr().err
    assert main(["service", "uninstall"]) == 0


@pytest.mark.parametrize(
    ("words", "fails", "told"),
    [
        ("start", "", "There is no service; see `akunu-py service install`."),
        ("stop -- --port 1", "", "Only install takes options; omit --port."),
        ("install -- --prot 1", "", "did you mean --port?"),
        ("install -- --log-file x", "", "omit --log-file."),
        ("install", "enable", "systemctl enable failed: no enable"),
        ("dance", "", "'dance' is not one of install"),
    ],
)
def test_what_cannot_be_done_is_told(
    system: Callable[[str], System],
    capsys: pytest.CaptureFixture[str],
    words: str,
    fails: str,
    told: str,
) -> None:
    system("systemctl").fails(fails)
    assert main(["service", *words.split()]) == 2
    assert told in capsys.readouterr().err


def test_a_system_without_services_is_told(
    system: Callable[[str], System], capsys: pytest.CaptureFixture[str]
) -> None:
    system("something")
    assert main(["service", "install"]) == 2
    assert "neither launchd nor systemd" in capsys.readouterr().err


def test_the_log_of_serve_is_bounded_and_takes_what_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "serve.log"
    script = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from akunu_py.cli.serve import LogFile\n"
        f"logging.basicConfig(handlers=[LogFile(Path({str(path)!r}))])\n"
        "for _ in range(300):\n"
        "    logging.warning('w' * 5000)\n"
        "    print('p' * 5000, flush=True)\n"
        "print('the end', flush=True)\n"
        "print('and an error', file=sys.stderr)\n"
    )
    assert run("-c", script) == (0, "", "")
    assert {found.name for found in tmp_path.iterdir()} == {"serve.log", "serve.log.1"}
    for found in tmp_path.iterdir():
        assert found.stat().st_size < 1.1 * 2**20
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert path.read_text().endswith("the end\nand an error\n")


def test_a_log_that_cannot_be_kept_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--log-file", str(tmp_path)]) == 2
    assert "check --log-file" in capsys.readouterr().err
