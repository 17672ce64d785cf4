"""Kills processes while they write a project's memory, and examines what they leave.

    python -m benchmarks.memory_kills [--kills 100]

Two writers at once append, replace, drop and merge files in one store as fast as they can, and say
which they have written. Both are killed (SIGKILL) at a random moment. Afterwards every file that
was said to be written must be there, or the one that its writer wrote next in its place, each with
its whole content. Then segments and databases are cut and flipped at random places, the disk is
full, and the folder is read-only: nothing may be wrong, and nothing but one sentence be raised.
"""

import argparse
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import sleep
from typing import Final

from akunu_py.errors import InvalidRequestError
from akunu_py.memory.segment import END
from akunu_py.memory.store import KnownFile, MemoryStore

PROJECT: Final = Path("/a/project")
KEY: Final = bytes(32)
SLOTS: Final = 7
_LONGEST_WAIT_S: Final = 0.2
_NOBODY: Final = 65534
_FULL_AT: Final = 20_000
"""Bytes of a file, after which the disk is as if it were full."""


def content_of(number: int) -> list[int]:
    """The tokens of a file, which tell its number; some are long, so that segments are merged."""
    return [number] * (1 + number * 37 % 3000)


def write(folder: Path, writer: int, first: int) -> None:
    """Writes one file after another, each in place of an older one; says the number of each."""
    store, number = MemoryStore(folder), first
    while True:
        content = content_of(number)
        known = KnownFile(b"%d" % number, len(content), 0)
        gone = [f"{writer}/extra"] if number % 5 == 0 else []
        if number % 5 == 3:
            store.update(PROJECT, KEY, {f"{writer}/extra": (known, content)})
        store.update(PROJECT, KEY, {f"{writer}/{number % SLOTS}": (known, content)}, gone)
        print(number, flush=True)
        number += 1


def documents(store: MemoryStore) -> list[list[int]]:
    """What the segments hold."""
    found: list[list[int]] = [[]]
    for segment in store.open(PROJECT, KEY):
        for token in segment.tokens:
            if token == END:
                found.append([])
            else:
                found[-1].append(token)
    return found[:-1]


def check(folder: Path, said: dict[int, list[int]] | None = None) -> int:
    """Examines a store; `said` are the numbers of each writer's files. Returns its files.

    Raises:
        AssertionError: if a file is lost or wrong.
    """
    store = MemoryStore(folder)
    files, held = store.files(PROJECT, KEY), documents(store)
    store.close()
    assert all(content == content_of(content[0]) for content in held)
    numbers = {content[0] for content in held}
    assert all(int(known.digest) in numbers for known in files.values())
    for writer, lines in (said or {}).items():
        for number in lines[-SLOTS:]:
            known = int(files[f"{writer}/{number % SLOTS}"].digest)
            assert known == number or known == lines[-1] + 1, (writer, number, known)
    return len(files)


def kill_once(folder: Path, said: dict[int, list[int]], wait_s: float) -> bool:
    """Starts both writers, kills them, and examines what they leave; whether a file was unfinished.

    Raises:
        AssertionError: if a file is lost or wrong.
    """
    started = []
    for writer, lines in said.items():
        first = lines[-1] + 2 if lines else 1
        words = ["--write", str(folder), str(writer), str(first)]
        command = [sys.executable, "-m", __spec__.name, *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for process, lines in zip(started, said.values(), strict=True):
        assert process.stdout is not None
        lines += [int(process.stdout.readline()) for _ in range(SLOTS)]
    sleep(wait_s)
    for process in started:
        process.kill()
    for process, lines in zip(started, said.values(), strict=True):
        lines.extend(map(int, process.communicate()[0].split()))
    unfinished = any(folder.glob(".*"))
    check(folder, said)
    return unfinished


def damage(folder: Path, draw: Random) -> int:
    """Cuts or flips a file of a store at a random place; returns the files that are left. Then
    writes all files again, which may be refused once.

    Raises:
        AssertionError: if what is left is wrong, or cannot be written again.
    """
    victims = [*folder.glob("*.segment"), folder / "projects.sqlite"]
    path = draw.choice(victims)
    content = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        content = content[: draw.randrange(len(content))]
    else:
        for _ in range(draw.choice((1, 8))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    try:
        kept = check(folder)
        fill(folder, SLOTS)
    except InvalidRequestError:  # one sentence, after which the memory has to start anew
        kept = 0
        fill(folder, SLOTS)
    assert check(folder) == SLOTS
    return kept


def fill(folder: Path, files: int) -> None:
    """Writes some files."""
    store = MemoryStore(folder)
    try:
        for number in range(1, files + 1):
            content = content_of(number)
            known = KnownFile(b"%d" % number, len(content), 0)
            store.update(PROJECT, KEY, {f"0/{number}": (known, content)})
    finally:
        store.close()


def in_child(task: Callable[[], None]) -> int:
    """Runs a task in a process of its own: 0 if it was done, 1 if it was refused in a sentence."""
    child = os.fork()
    if not child:
        code = 2
        try:
            task()
            code = 0
        except InvalidRequestError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def without_room(folder: Path, files: int) -> None:
    """Goes on writing on a disk that is full.

    Raises:
        AssertionError: if a file is lost or wrong, or the failure is not one sentence.
    """

    def append() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_AT, _FULL_AT))
        store, content = MemoryStore(folder), content_of(80) * 20
        store.update(PROJECT, KEY, {"0/big": (KnownFile(b"80", len(content), 0), content)})

    assert in_child(append) == 1
    assert check(folder) == files


def without_rights(folder: Path, files: int) -> None:
    """Uses a folder that cannot be written.

    Raises:
        AssertionError: if a file is lost or wrong, or the failure is not one sentence.
    """
    os.chmod(folder, 0o555)

    def use() -> None:
        if not os.getuid():
            os.setuid(_NOBODY)
        MemoryStore(folder)

    assert in_child(use) == 1
    os.chmod(folder, 0o700)
    assert check(folder) == files


def main() -> None:
    """Runs the measurement, or one of its writers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        folder, writer, first = asked.write
        write(Path(folder), int(writer), int(first))
    logging.disable(logging.WARNING)  # each damaged file is reported
    draw, said = Random(0), dict[int, list[int]]({1: [], 2: []})
    with TemporaryDirectory() as name:
        folder = Path(name) / "killed"
        unfinished = sum(
            kill_once(folder, said, draw.uniform(0, _LONGEST_WAIT_S)) for _ in range(asked.kills)
        )
        kept, damaged = 0, Path(name) / "damaged"
        fill(damaged, SLOTS)
        for _ in range(2 * asked.kills):
            kept += damage(damaged, draw)
        full = Path(name) / "full"
        fill(full, SLOTS)
        without_room(full, SLOTS)
        without_rights(full, SLOTS)
    writes, usable = sum(map(len, said.values())), kept / (2 * asked.kills * SLOTS)
    print(
        f"{2 * asked.kills} writers, two at once, were killed after {writes:,} writes, "
        f"{unfinished} times in the middle of a file; every file was there and whole. Of "
        f"{2 * asked.kills} damaged stores, {usable:.0%} of the files could still be used and none "
        "was wrong. A full disk and a read-only folder were refused in a sentence, and lost "
        "nothing."
    )


if __name__ == "__main__":
    main()
