"""`service`: lets the system run `serve`, now and after each login.

On a Mac, it is an agent of launchd, on Linux a unit of the user's systemd. A file of the user
describes the service, which has its own log.
"""

import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Final

from platformdirs import user_config_path, user_log_path

from akunu_py.cli.parser import PROGRAM, parse
from akunu_py.cli.render import printable, tell
from akunu_py.cli.settings import ServiceSettings
from akunu_py.errors import AkunuError, InvalidRequestError
from akunu_py.package import make_private, write_atomically

_KEPT: Final = ("AKUNU_", "HF_")
"""Prefixes of the environment variables that the service gets too."""
_MAY_FAIL: Final = "-"
_MAY_WAIT: Final = "+"
_UNFIT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SECONDS_TO_STOP: Final = 25
"""launchd does not start a service that is still ending; after 20 seconds, it kills it."""


@dataclass(frozen=True)
class Manager:
    """The system's service manager: the file that describes our service, its text, and the commands
    of each action. The mark before a command says whether it may fail, or is retried for a
    while."""

    program: tuple[str, ...]
    path: Path
    describe: Callable[[], str]
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
        described = manager.describe()
        make_private(log.parent)
        manager.path.parent.mkdir(parents=True, exist_ok=True)
        if manager.path.exists():
            manager.path.chmod(0o600)  # keys are in it
        write_atomically(manager.path, described)
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
    found = [path for path in (log.with_name(f"{log.name}.1"), log) if path.exists()]
    if not found:
        tell(f"There is no log yet; see `{PROGRAM} service status`.")
    for path in found:
        print(printable(path.read_text(encoding="utf-8", errors="replace")), end="")
    return 0


def _manager(words: Sequence[str], log: Path) -> Manager:
    if shutil.which("launchctl"):
        return _launchd(words, log)
    if shutil.which("systemctl"):
        return _systemd(words)
    raise InvalidRequestError("There is neither launchd nor systemd here to run a service.")


def _place(words: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """The folder and the variables of the service, if its file can hold them, and its words."""
    folder = os.getcwd()
    kept = {key: value for key, value in os.environ.items() if key.startswith(_KEPT)}
    held = {"this folder's name": folder.replace("\n", "\r"), "an option": "".join(words), **kept}
    for name, text in held.items():
        if _UNFIT.search(text):
            raise InvalidRequestError(f"A service cannot have control characters in {name}.")
    return folder, kept


def _launchd(words: Sequence[str], log: Path) -> Manager:
    path = Path.home() / "Library" / "LaunchAgents" / f"{PROGRAM}.plist"
    domain = f"gui/{os.getuid()}"
    agent = f"{domain}/{PROGRAM}"

    def describe() -> str:
        folder, kept = _place(words)
        described = {
            "Label": PROGRAM,
            "ProgramArguments": list(words),
            "WorkingDirectory": folder,
            "EnvironmentVariables": dict(kept),
            "StandardErrorPath": str(log),  # what is said before the program opens it
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ProcessType": "Interactive",  # others get less of the processor and the disk
        }
        return plistlib.dumps(described).decode()

    return Manager(("launchctl",), path, describe, {
        "install": ((_MAY_FAIL, "bootout", agent), (_MAY_WAIT, "bootstrap", domain, str(path))),
        "start": ((_MAY_FAIL, "bootstrap", domain, str(path)), ("", "kickstart", agent)),
        "stop": (("", "bootout", agent),),
        "status": (("", "print", agent),),
        "uninstall": ((_MAY_FAIL, "bootout", agent),),
    })  # fmt: skip


def _systemd(words: Sequence[str]) -> Manager:
    unit = f"{PROGRAM}.service"

    def describe() -> str:
        folder, kept = _place(words)
        program, options = words[0], " ".join(map(_quoted, words[1:]))
        if re.search(r"[\"'\\\t]", program):
            raise InvalidRequestError(
                f"systemd cannot run a program named {program}; install {PROGRAM} in another "
                "folder."
            )
        return "\n".join(
            [
                "[Unit]",
                "Description=A local model for editors and agents",
                "[Service]",
                f"ExecStart={_quoted(program)} {options.replace('$', '$$')}",
                # The last slash, which systemd drops, keeps a space or a backslash before it.
                f"WorkingDirectory={folder.replace('%', '%%')}/",
                *(f"Environment={_quoted(f'{key}={value}')}" for key, value in kept.items()),
                "Restart=on-failure",
                "RestartPreventExitStatus=2",  # what was refused once will be refused again
                "[Install]",
                "WantedBy=default.target\n",
            ]
        )

    path = user_config_path("systemd") / "user" / unit
    return Manager(("systemctl", "--user"), path, describe, {
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
