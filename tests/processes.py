"""Python as a process of its own: what tests run in one is started here."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

PROGRAM: Final = ("-m", "akunu_py")


def start(
    *words: str, env: Mapping[str, str] | None = None, **settings: Any
) -> "subprocess.Popen[str]":
    """Starts Python with these words, some more of the environment, and settings of `Popen`; the
    outputs are pipes without buffers."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    more = {"PYTHONUNBUFFERED": "1", **(env or {})}
    return subprocess.Popen([sys.executable, *words], text=True, env=os.environ | more, **pipes)


def run(*words: str, stdin: bytes = b"", stdout: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Runs Python with these words to its end: the exit status and both outputs."""
    done = subprocess.run(
        [sys.executable, *words], input=stdin, stdout=stdout, stderr=subprocess.PIPE, check=False
    )
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()
