"""`service`: lets the system run `serve`, now and after each login.

On a Mac, it is an agent of launchd, on Linux a unit of the user's systemd. A file of the user
describes the service, which has its own log.
"""

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Final

from platformdirs import user_config_path, user_log_path

from akunu_py.cli.parser import PROGRAM, parse
from akunu_py.cli.render import printable
from akunu_py.cli.settings import ServiceSettings
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.package import make_private, write_atomically

_KEPT: Final = ("AKUNU_", "HF_")
"""Prefixes of the environment variables that the service gets too."""
_MAY_FAIL: Final = "-"
_MAY_WAIT: Final = "+"
_SECONDS_TO_STOP: Final = 25
"""launchd does not start a service that is still ending; after 20 seconds, it kills it."""


@dataclass(frozen=True)
class Manager:
    """The system's service manager: the file that describes our service, and the commands of each
    action, after a mark. A command that may fail is not always needed; one that may wait is tried
    again for a while."""

    program: tuple[str, ...]
    path: Path
    text: str
    steps: Mapping[str, Sequence[tuple[str, ...]]]

    def take(self, action: str) -> None:
        for mark, *words in self.steps[action]:
            for _ in range(_SECONDS_TO_STOP if mark == _MAY_WAIT else 1):
                done = self._call(words, is_shown=False)
                if not done.returncode or mark == _MAY_FAIL:
                    break
                sleep(mark == _MAY_WAIT)
            else:
                said = " ".join(done.stderr.split()) or f"status {done.returncode}."
                raise AkunuError(f"{self.program[0]} {words[0]} failed: {said}")

    def show(self) -> int:
        ((_, *words),) = self.steps["status"]
        return self._call(words, is_shown=True).returncode

    def _call(self, words: list[str], *, is_shown: bool) -> "subprocess.CompletedProcess[str]":
        command = [*self.program, *words]
        return subprocess.run(command, check=False, capture_output=not is_shown, text=True)


def run(settings: ServiceSettings) -> int:
    """Runs the action; the exit code of `status` is that of the system's own command."""
    log = user_log_path(PROGRAM, appauthor=False) / "serve.log"
    serve = ["serve", "--log-file", str(log), *settings.arguments]
    manager = _manager([sys.executable, "-P", "-m", "akunu_py", *serve], log)
    if settings.action == "install":
        if parse(serve).settings.log_file != log:
            raise InvalidRequestError(f"The service keeps its log in {log}; omit --log-file.")
        make_private(log.parent)
        manager.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(manager.path, manager.text)
    elif not manager.path.exists():
        raise InvalidRequestError(f"There is no service; see `{PROGRAM} service install`.")
    if settings.action == "logs":
        return _show_log(log)
    if settings.action == "status":
        return manager.show()
    try:
        manager.take(settings.action)
    finally:
        if settings.action == "uninstall":
            manager.path.unlink()
    if settings.action == "install":
        print(f"Started from {manager.path}; `{PROGRAM} service logs` shows its log.")
    return 0


def _show_log(log: Path) -> int:
    for path in (log.with_name(f"{log.name}.1"), log):
        if path.exists():
            print(printable(path.read_text(encoding="utf-8", errors="replace")), end="")
    return 0


def _manager(words: Sequence[str], log: Path) -> Manager:
    kept = {key: value for key, value in os.environ.items() if key.startswith(_KEPT)}
    if shutil.which("launchctl"):
        return _launchd(words, kept, log)
    if shutil.which("systemctl"):
        return _systemd(words, kept)
    raise InvalidRequestError("There is neither launchd nor systemd here to run a service.")


def _launchd(words: Sequence[str], kept: Mapping[str, str], log: Path) -> Manager:
    path = Path.home() / "Library" / "LaunchAgents" / f"{PROGRAM}.plist"
    domain = f"gui/{os.getuid()}"
    agent = f"{domain}/{PROGRAM}"
    described = {
        "Label": PROGRAM,
        "ProgramArguments": list(words),
        "WorkingDirectory": os.getcwd(),
        "EnvironmentVariables": dict(kept),
        "StandardErrorPath": str(log),  # for output before the program opens it
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ProcessType": "Interactive",  # other types get less of the processor and the disk
    }
    return Manager(("launchctl",), path, plistlib.dumps(described).decode(), {
        "install": ((_MAY_FAIL, "bootout", agent), (_MAY_WAIT, "bootstrap", domain, str(path))),
        "start": ((_MAY_FAIL, "bootstrap", domain, str(path)), ("", "kickstart", agent)),
        "stop": (("", "bootout", agent),),
        "status": (("", "print", agent),),
        "uninstall": ((_MAY_FAIL, "bootout", agent),),
    })  # fmt: skip


def _systemd(words: Sequence[str], kept: Mapping[str, str]) -> Manager:
    unit = f"{PROGRAM}.service"
    described = [
        "[Unit]",
        "Description=A local model for editors and agents",
        "[Service]",
        f"ExecStart={' '.join(_quoted(word).replace('$', '$$') for word in words)}",
        f"WorkingDirectory={os.getcwd().replace('%', '%%')}",
        *(f"Environment={_quoted(f'{key}={value}')}" for key, value in kept.items()),
        "Restart=on-failure",
        "RestartPreventExitStatus=2",  # a refused request would be refused again
        "[Install]",
        "WantedBy=default.target\n",
    ]
    path = user_config_path("systemd") / "user" / unit
    return Manager(("systemctl", "--user"), path, "\n".join(described), {
        "install": (("", "daemon-reload"), ("", "enable", unit), ("", "restart", unit)),
        "start": (("", "start", unit),),
        "stop": (("", "stop", unit),),
        "status": (("", "--no-pager", "status", unit),),
        "uninstall": (("", "disable", "--now", unit),),
    })  # fmt: skip


def _quoted(word: str) -> str:
    """A word quoted for systemd."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace("%", "%%")}"'
