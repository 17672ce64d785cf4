"""What attentions of few rows take on a GPU in 16 bits: MLX's own, and as two products.

    python -m benchmarks.attention_plans

Each time the keys are one more, as they are in every round. 32 query heads, 8 of keys, 128 wide.
On CUDA, cuDNN makes a plan for every number of keys, if an attention has more than one row; see
`akunu_py/attention.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Final

from akunu_py.backend import find_backend
from akunu_py.bench.measurement import describe_machine, machine_line
from benchmarks.records import markdown_table, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from akunu_py.attention import TwoProducts  # isort: skip

ROWS: Final = (2, 3, 4, 8, 9, 17, 33)
KEYS: Final = (512, 3000)
REPEATS: Final = 7
LAYERS: Final = 32  # attentions over as many keys in a forward
HEADS: Final = 32
KEY_HEADS: Final = 8
WIDTH: Final = 128


def microseconds(attend: Callable[..., mx.array], rows: int, keys: int) -> float:
    """The median time of one of the attentions of a forward, each time over one more key."""
    draw = mx.random.normal((3, HEADS, keys + REPEATS, WIDTH)).astype(mx.bfloat16)
    queries = draw[:1, :, :rows]
    buffers = draw[1:2, :KEY_HEADS], draw[2:3, :KEY_HEADS]
    mx.eval(queries, *buffers)
    named: dict[str, Any] = {"scale": WIDTH**-0.5, "mask": "causal"}
    times = []
    for more in range(REPEATS):
        buffered = [buffer[:, :, : keys + more] for buffer in buffers]
        begun = perf_counter()
        mx.eval([attend((queries + layer, *buffered), **named) for layer in range(LAYERS)])
        times.append(1e6 * (perf_counter() - begun) / LAYERS)
    return median(times)


def own(inputs: tuple[mx.array, mx.array, mx.array], **named: Any) -> mx.array:
    """MLX's attention."""
    return mx.fast.scaled_dot_product_attention(*inputs, **named)


def products(inputs: tuple[mx.array, mx.array, mx.array], **named: Any) -> mx.array:
    """The same by two products."""
    return TwoProducts().attend(lambda *_, **__: mx.zeros(0), inputs, **named)


WAYS: Final = {"MLX's": own, "two products": products}


def main() -> None:
    """Measures both ways and records the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="attention_plans", help="of the files in results/")
    name = parser.parse_args().name
    backend = find_backend()
    if backend.device == "cpu":
        sys.exit("This needs a GPU: a CPU has other kernels.")
    mx.random.seed(0)
    found = {
        f"{rows} rows, {keys:,} keys": {
            way: round(microseconds(attend, rows, keys), 1) for way, attend in WAYS.items()
        }
        for rows in ROWS
        for keys in KEYS
    }
    machine = describe_machine(backend)
    table = markdown_table(["", *WAYS], [[case, *times.values()] for case, times in found.items()])
    record(
        name,
        "Attentions of few rows in bfloat16",
        f"{machine_line(machine)}. Microseconds, medians of {REPEATS}, each over one key "
        f"more; made by `python -m benchmarks.attention_plans`.\n\n{table}",
        {"machine": machine, "microseconds": found},
    )


if __name__ == "__main__":
    main()
