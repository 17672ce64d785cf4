"""What a large memory of a project costs: time to build, to open and to look up; pages mapped.

    python -m benchmarks.memory_size [--tokens 10_000_000]

The text is Python code of this interpreter's library and of installed packages, as often as it is
needed, with other names each time. Building is timed on one thread: encoding with ember's
tokenizer, sorting and writing. Opening is timed in new processes, as `--project` opens it, after
the file was written, so it is in the machine's file cache. Times are those of the processor, which
other work on the machine hardly changes; both use one thread, and the disk is not waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from akunu_py.memory.projects import open_memory
from akunu_py.memory.segment import DEPTH
from akunu_py.memory.store import KnownFile, MemoryStore
from akunu_py.memory.tiers import MemoryTier
from akunu_py.model.loading import load_tokenizer
from akunu_py.package import CACHE_VARIABLE
from benchmarks.records import record

KEY: Final = bytes(32)
OPENINGS: Final = 9
LOOKUPS: Final = 2000
BATCH_TOKENS: Final = 1 << 22
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def texts() -> Iterator[str]:
    """Files without end."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    for again in count():
        for path in paths:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield text.replace("self", f"self{again}") if again else text


def resident() -> int:
    """Bytes of this process in memory that are its own, without pages of files."""
    _, all_pages, shared = Path("/proc/self/statm").read_text().split()[:3]
    return _PAGE * (int(all_pages) - int(shared))


def build(project: Path, tokens: int) -> tuple[float, float, float]:
    """Writes a memory; returns megabytes of text, and the seconds of encoding and of the rest."""
    encode = load_tokenizer("ember").encode_plain
    store, done, characters, encoding, writing = MemoryStore(), 0, 0, 0.0, 0.0
    files = enumerate(texts())
    while done < tokens:
        begun, batch, held = time.process_time(), {}, 0
        while held < min(BATCH_TOKENS, tokens - done):
            number, text = next(files)
            ids = encode(text)
            batch[str(number)] = KnownFile(b"%d" % number, len(text), 0), ids
            held, characters = held + len(ids), characters + len(text.encode())
        encoded = time.process_time()
        assert store.update(project, KEY, batch)
        done, encoding = done + held, encoding + encoded - begun
        writing += time.process_time() - encoded
    store.close()
    return characters / 1e6, encoding, writing


def open_once(project: Path) -> None:
    """Prints the milliseconds of opening, the bytes that it took, and of lookups microseconds."""
    before, begun = resident(), time.process_time()
    memory = open_memory([str(project)], KEY, 1 << 31)
    opened, grown = 1e3 * (time.process_time() - begun), resident() - before
    texts_, draw = memory.projects[str(project)], Random(0)
    segment = max(texts_.segments, key=len)
    took = []
    for _ in range(LOOKUPS):
        at = draw.randrange(DEPTH, len(segment))
        context = list(segment.tokens[at - DEPTH : at])
        tier = MemoryTier(texts_)
        begun = time.perf_counter()
        tier.recall(context)
        took.append(1e6 * (time.perf_counter() - begun))
    print(opened, grown, statistics.median(took), len(texts_.segments))


def main() -> None:
    """Runs the measurement, or one of its openings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.open:
        open_once(asked.open)
        return
    with TemporaryDirectory() as name:
        os.environ |= {CACHE_VARIABLE: name, "TOKENIZERS_PARALLELISM": "false"}
        project = Path(os.path.realpath(name))
        megabytes, encoding, writing = build(project, asked.tokens)
        command = [sys.executable, "-m", __spec__.name, "--open", str(project)]
        said = [
            [float(word) for word in subprocess.check_output(command, text=True).split()]
            for _ in range(OPENINGS)
        ]
    opened, grown, lookup, segments = map(statistics.median, zip(*said, strict=True))
    figures = {
        "tokens": asked.tokens,
        "megabytes": round(megabytes, 1),
        "megabytes_per_s": round(megabytes / (encoding + writing), 2),
        "megabytes_per_s_without_encoding": round(megabytes / writing, 2),
        "open_ms": round(opened, 1),
        "own_bytes": int(grown),
        "lookup_us": round(lookup, 1),
        "segments": int(segments),
    }
    record(
        "memory_size",
        "What a large memory costs",
        f"{asked.tokens:,} tokens of {megabytes:.0f} MB of Python code in {segments:.0f} segments. "
        f"Built at {figures['megabytes_per_s']} MB/s on one core "
        f"({figures['megabytes_per_s_without_encoding']} MB/s without encoding). Opened in "
        f"{opened:.1f} ms (median of {OPENINGS} processes); this takes {grown / 1e6:.1f} MB "
        "besides mapped "
        f"pages. A look-up takes {lookup:.0f} microseconds (median of {LOOKUPS:,}).",
        figures,
    )


if __name__ == "__main__":
    main()
