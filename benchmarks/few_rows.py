"""What MLX's kernels for few rows take on a GPU: quantized products, and attentions in 16 bits.

    python -m benchmarks.few_rows

The product is that of a matrix of Llama 3 8B, in 4 bits. The attentions have 32 query heads and 8
of keys, 128 wide: MLX's own, and as two products (`akunu_py/attention.py`). Each time the keys are
one more, as they are in every round, because cuDNN makes a plan for every number of keys.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any, Final

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from benchmarks.records import markdown_table, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from akunu_py.model.attention import TwoProducts  # isort: skip

PRODUCT_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 32)
MATRIX: Final = (14336, 4096)
GROUP_SIZE: Final = 64
BITS: Final = 4
ROWS: Final = (2, 3, 4, 8, 9, 17, 33)
KEYS: Final = (512, 3000)
REPEATS: Final = 7
LAYERS: Final = 32  # products, or attentions over as many keys, in a forward
HEADS: Final = 32
KEY_HEADS: Final = 8
WIDTH: Final = 128


def microseconds(build: Callable[[int], list[mx.array]]) -> float:
    """The median time of one of the arrays that are built together, given the turn."""
    times = []
    for turn in range(REPEATS + 1):  # the first is a warm-up
        begun = perf_counter()
        built = build(turn)
        mx.eval(built)
        times.append(1e6 * (perf_counter() - begun) / len(built))
    return round(median(times[1:]), 1)


def product(rows: int) -> float:
    """Microseconds of a product of `rows` rows."""
    matrix = mx.quantize(mx.random.normal(MATRIX).astype(mx.bfloat16), GROUP_SIZE, BITS)
    inputs = mx.random.normal((rows, MATRIX[1])).astype(mx.bfloat16)
    mx.eval(matrix, inputs)
    return microseconds(
        lambda _: [
            mx.quantized_matmul(inputs, *matrix, transpose=True, group_size=GROUP_SIZE, bits=BITS)
            for _ in range(LAYERS)
        ]
    )


def own(inputs: tuple[mx.array, mx.array, mx.array], **named: Any) -> mx.array:
    """MLX's attention."""
    return mx.fast.scaled_dot_product_attention(*inputs, **named)


def products(inputs: tuple[mx.array, mx.array, mx.array], **named: Any) -> mx.array:
    """The same by two products."""
    return TwoProducts().attend(lambda *_, **__: mx.zeros(0), inputs, **named)


WAYS: Final = {"MLX's": own, "two products": products}


def attention(attend: Callable[..., mx.array], rows: int, keys: int) -> float:
    """Microseconds of an attention, each time over one key more."""
    draw = mx.random.normal((3, HEADS, keys + REPEATS + 1, WIDTH)).astype(mx.bfloat16)
    queries = draw[:1, :, :rows]
    buffers = draw[1:2, :KEY_HEADS], draw[2:3, :KEY_HEADS]
    mx.eval(queries, *buffers)

    def build(turn: int) -> list[mx.array]:
        seen = [buffer[:, :, : keys + turn] for buffer in buffers]
        return [
            attend((queries + layer, *seen), scale=WIDTH**-0.5, mask="causal")
            for layer in range(LAYERS)
        ]

    return microseconds(build)


def main() -> None:
    """Measures all and records the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", default="few_rows", help="of the files in results/")
    name = parser.parse_args().name
    backend = find_backend()
    if backend.device == "cpu":
        sys.exit("This needs a GPU: a CPU has other kernels.")
    mx.random.seed(0)
    by_rows = {rows: product(rows) for rows in PRODUCT_ROWS}
    attentions = {
        f"{rows} rows, {keys:,} keys": {
            way: attention(attend, rows, keys) for way, attend in WAYS.items()
        }
        for rows in ROWS
        for keys in KEYS
    }
    machine = describe_machine(backend)
    cells = [[case, *times.values()] for case, times in attentions.items()]
    record(
        name,
        "Kernels for few rows",
        f"{machine_line(machine)}. Microseconds, medians of {REPEATS}; made by "
        "`python -m benchmarks.few_rows`, which says of what.\n\nA quantized product:\n\n"
        f"{markdown_table(['rows', 'µs'], list(by_rows.items()))}\n\nAttentions in bfloat16:\n\n"
        f"{markdown_table(['', *WAYS], cells)}",
        {"machine": machine, "product": by_rows, "attentions": attentions},
    )


if __name__ == "__main__":
    main()
