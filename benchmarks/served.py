"""A server to measure: `akunu_py serve` as a process of its own, within a context."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import httpx2

PATIENCE_S = 600.0
LOOK_AGAIN_S = 0.05


@dataclass(frozen=True)
class Served:
    """A server that is ready, and its process id."""

    url: str
    process: int

    def resident_bytes(self) -> int | None:
        """The memory it takes; None if the system does not report it."""
        try:
            status = Path(f"/proc/{self.process}/status").read_text(encoding="ascii")
        except OSError:
            return None
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        return int(found[1]) * 1024 if found else None


@contextmanager
def served(model: str, words: Sequence[str] = ()) -> Iterator[Served]:
    """Starts a server on a free port with further options of `serve` in `words`, waits for its
    model, and stops it at the end."""
    command = [sys.executable, "-m", "akunu_py", "serve", "--port", "0", "--model", model, *words]
    command += ["--log-level", "ERROR"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                sys.exit("The server did not start.")
            wait_until_loaded(found.group())
            yield Served(found.group(), process.pid)
        finally:
            process.terminate()


def wait_until_loaded(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        while client.get("/health").status_code == httpx2.codes.SERVICE_UNAVAILABLE:
            sleep(LOOK_AGAIN_S)


def counts(client: httpx2.Client) -> dict[str, float]:
    """The server's counters and gauges, by their names without a prefix."""
    lines = [line.split() for line in client.get("/metrics").text.splitlines()]
    return {
        words[0].removeprefix("llamacpp:"): float(words[1]) for words in lines if len(words) == 2
    }
