"""What a plain client notices while others attack the server.

    python -m benchmarks.hostile [--quick] [--attacks NAME ...] [--seconds 8]

Each kind of attack of `tests/server/attacks.py` goes on for some seconds. Meanwhile a client
completes a short prompt, and another asks `/health` every 50 ms. The attackers are a process of
their own on the server's cores, at the lowest priority: they would be on another machine. At the
end, the server is left alone for a minute, and its memory is compared with that before, when its
caches were full. The aims: a completion takes at most twice its idle time or one forward pass more,
`/health` 100 ms, and memory is back within 10%.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from statistics import median
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.options import BUNDLED_MODEL
from benchmarks.records import markdown_table, options_of, record
from benchmarks.served import PATIENCE_S, Served, served
from tests.server.attacks import ATTACKS, LONG

ASKED: Final = {"prompt": "def add(a, b):\n", "n_predict": 16, "temperature": 0, "stop": []}
HEALTH_EVERY_S: Final = 0.05
COMPLETION_EVERY_S: Final = 0.1
REST_S: Final = 60.0
PROMPTS: Final = 12
CACHE_BYTES: Final = 64 << 20
"""So few that these prompts fill them: what the caches keep of attackers is no leak."""
BEGIN_S: Final = 0.5
_NICEST: Final = 19


def attack(url: str, name: str) -> None:
    """Attacks until it is killed."""
    os.nice(_NICEST)
    kind, numbers = ATTACKS[name], count()
    parts = urlsplit(url)

    def strike() -> None:
        while True:
            data, until = kind.data(next(numbers)), perf_counter() + kind.linger_s
            with (
                suppress(OSError),
                socket.create_connection((str(parts.hostname), parts.port or 80)) as link,
            ):
                link.settimeout(kind.linger_s)
                link.sendall(data)
                if not kind.answers:
                    sleep(kind.linger_s)
                while perf_counter() < until and link.recv(1 << 16):
                    pass
            sleep(0.01)

    for _ in range(kind.connections):
        Thread(target=strike, daemon=True).start()
    sys.stdin.read()


def repeat(act: Callable[[], Any], every_s: float, ended: Event, took: list[float]) -> Thread:
    """Does something again and again in a thread, and notes how long it took."""

    def run() -> None:
        while not ended.is_set():
            begun = perf_counter()
            try:
                act()
                took.append((perf_counter() - begun) * 1000)
            except (httpx2.HTTPError, AssertionError):
                took.append(float("inf"))
            ended.wait(every_s)

    thread = Thread(target=run)
    thread.start()
    return thread


def watch(url: str, seconds: float) -> tuple[list[float], list[float]]:
    """The milliseconds of completions and of `/health` during some seconds."""
    completions: list[float] = []
    healths: list[float] = []
    ended = Event()
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:

        def complete() -> None:
            answer = client.post("/completion", json=ASKED)
            assert answer.status_code == httpx2.codes.OK, answer.text

        def look() -> None:
            assert client.get("/health").status_code == httpx2.codes.OK

        threads = [
            repeat(complete, COMPLETION_EVERY_S, ended, completions),
            repeat(look, HEALTH_EVERY_S, ended, healths),
        ]
        sleep(seconds)
        ended.set()
        for thread in threads:
            thread.join()
    return completions, healths


def fill_caches(url: str) -> None:
    """Has the server keep the caches of as many prompts and grammars as it ever will."""
    with httpx2.Client(base_url=url, timeout=PATIENCE_S) as client:
        for number in range(PROMPTS):
            prompt = f"# {number}\n" + LONG[:400]
            asked = ASKED | {"prompt": prompt, "regex": f"[a-z]{{{number}}}.*"}
            client.post("/completion", json=asked).raise_for_status()


def under_attack(server: Served, name: str, seconds: float) -> tuple[list[float], list[float]]:
    command = [sys.executable, "-m", "benchmarks.hostile", "--attack", name, server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as attackers:
        try:
            sleep(BEGIN_S)
            return watch(server.url, seconds)
        finally:
            attackers.kill()


def main() -> None:
    if "--attack" in sys.argv:
        name, url = sys.argv[-2:]
        attack(url, name)
        return

    assert __doc__
    parser = options_of(__doc__, name="hostile", quick="two seconds for each attack")
    parser.add_argument("--attacks", nargs="+", choices=[*ATTACKS], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each attack")
    options = parser.parse_args()
    seconds = 2.0 if options.quick else options.seconds
    rows = []
    with served(BUNDLED_MODEL, ["--prompt-cache-bytes", str(CACHE_BYTES)]) as server:
        fill_caches(server.url)
        watch(server.url, BEGIN_S)
        idle, idle_health = watch(server.url, seconds)
        before = server.resident_bytes() or 0
        rows.append(("idle", idle, idle_health, before))
        for name in options.attacks or ATTACKS:
            found = under_attack(server, name, seconds)
            rows.append((name, *found, server.resident_bytes() or 0))
            sleep(BEGIN_S)
            print(row_of(*rows[-1]), file=sys.stderr)
        sleep(BEGIN_S if options.quick else REST_S)
        after = server.resident_bytes() or 0
        rows.append(("a minute later", *watch(server.url, seconds), after))
    header = ["attack", "completion, ms", "worst", "`/health`, ms", "worst", "memory, MiB"]
    body = [
        machine_line(describe_machine(find_backend())),
        markdown_table(header, [row_of(*row) for row in rows]),
        f"Memory before {before >> 20} MiB, a minute later {after >> 20} MiB "
        f"({after / max(before, 1):.2f} of it).",
    ]
    record(options.name, "A plain client while others attack", "\n\n".join(body))


def row_of(name: str, took: list[float], health: list[float], taken: int) -> list[str]:
    figures = [median(took), max(took), median(health), max(health)]
    return [name, *(f"{figure:.0f}" for figure in figures), str(taken >> 20)]


if __name__ == "__main__":
    main()
