"""How long does a prompt take in chunks of so many tokens, and for how long do these hold others?

    python -m benchmarks.prefill_step [MODEL]... [--tokens 1500] [--passes 8]

`Backend.prefill_step` has the outcome. The sizes take turns, and the least time of each counts. On
a CPU that is the processor's time, so that a busy machine measures nearly the same.
"""

import argparse
import textwrap
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

import akunu_py
from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.engine import Engine
from akunu_py.options import BUNDLED_MODEL
from benchmarks.records import markdown_table, record

SIZES: Final = (64, 128, 256, 512, 1024, 2048)
TEXT: Final = Path(textwrap.__file__).read_text(encoding="utf-8")


def measure(engine: Engine, tokens: int, passes: int) -> dict[int, tuple[float, float]]:
    """By the size of a chunk: the least seconds of a prompt, and of its longest chunk."""
    model = engine.model
    clock = process_time if engine.backend.device == "cpu" else perf_counter
    prompt = engine.tokenizer.encode(TEXT * (1 + tokens // 4000))[:tokens]
    found: dict[int, list[tuple[float, float]]] = {size: [] for size in SIZES}
    for turn in range(passes + 1):
        for size, times in found.items():
            cache, stamps = model.make_cache(len(prompt)), [clock()]
            stamps.extend(clock() for _ in model.prefill_chunks(prompt, cache, step=size))
            chunks = [after - before for before, after in pairwise(stamps)]
            if turn:
                times.append((sum(chunks), max(chunks)))
    return {size: min(times) for size, times in found.items()}


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=[BUNDLED_MODEL])
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--name", default="prefill_step", help="of the files in results/")
    arguments = parser.parse_args()
    rows, seconds = [], {}
    for folder in arguments.models:
        engine = akunu_py.load(folder)
        found = measure(engine, arguments.tokens, arguments.passes)
        seconds[engine.model.name] = found
        rows += [
            [engine.model.name, str(size), f"{1000 * whole:.0f}", f"{1000 * longest:.0f}"]
            for size, (whole, longest) in found.items()
        ]
    head = ["model", "tokens per chunk", f"{arguments.tokens} tokens, ms", "longest chunk, ms"]
    machine = describe_machine(engine.backend)
    body = f"{machine_line(machine)}\n\n{markdown_table(head, rows)}"
    record(arguments.name, "A prompt in chunks", body, {"machine": machine, "seconds": seconds})


if __name__ == "__main__":
    main()
