"""Does a larger cache make a step slower? Preallocation is only free if no step copies the buffer.

    python -m benchmarks.kv_cache_capacity

Times single-token steps at the same length in caches of different capacity, in turns, and measures
the peak of memory with the largest one.
"""

import argparse
from functools import partial

import akunu_py
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.cache.kv_cache import KVCache
from akunu_py.model.target_model import TargetModel
from benchmarks.records import markdown_table, record
from benchmarks.turns import paired_ratios, time_in_turns

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)


def decode_steps(model: TargetModel, cache: KVCache, steps: int) -> None:
    """Runs single-token steps, pipelined as in plain decoding; then rolls back."""
    start = cache.length
    token = mx.array([1])
    for _ in range(steps):
        token = mx.argmax(model.forward(token, cache), axis=-1)
        mx.async_eval(token)  # type: ignore[no-untyped-call]
    mx.eval(token)
    cache.rollback(start)


def peak_over_buffers(model: TargetModel, capacity: int, length: int) -> tuple[int, int]:
    """Bytes of a cache's buffers, and the peak of memory while it is filled and used."""
    before = mx.get_active_memory()
    mx.clear_cache()
    mx.reset_peak_memory()
    cache = model.make_cache(capacity)
    model.prefill([1] * length, cache, step=64)
    decode_steps(model, cache, 32)
    return cache.nbytes, mx.get_peak_memory() - before


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--capacities", type=int, nargs="+", default=[2048, 8192, 32_768])
    parser.add_argument("--length", type=int, default=512, help="tokens in the cache while timing")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()

    engine = akunu_py.load(arguments.model)
    model, machine = engine.model, describe_machine(engine.backend)
    caches = {capacity: model.make_cache(capacity) for capacity in arguments.capacities}
    for cache in caches.values():
        model.prefill([1] * arguments.length, cache)
    seconds = time_in_turns(
        {
            str(capacity): partial(decode_steps, model, cache, arguments.steps)
            for capacity, cache in caches.items()
        },
        repeats=arguments.repeats,
        warmups=3,
    )
    smallest, largest = str(min(caches)), str(max(caches))
    rows = [
        [
            capacity,
            f"{Spread.of([1e3 * value / arguments.steps for value in values]):.3f}",
            f"{paired_ratios(seconds[smallest], values):.3f}",
        ]
        for capacity, values in seconds.items()
    ]
    del caches
    buffers, peak = peak_over_buffers(model, int(largest), arguments.length)
    table = markdown_table(
        ["capacity", "ms per step: median (quartiles)", f"time over that at {smallest}"], rows
    )
    ratio = paired_ratios(seconds[smallest], seconds[largest]).median
    body = (
        f"{machine_line(machine)}\n\nModel {model.name}, {model.layout} weights, "
        f"{arguments.length} tokens in the cache.\n\n{table}\n\n"
        f"At capacity {largest} the buffers take {buffers / 2**20:.1f} MiB; the peak of memory "
        f"while filling and stepping is {peak / 2**20:.1f} MiB, {peak / buffers:.2f} times that."
    )
    result = {
        "machine": machine,
        "model": model.name,
        "step_seconds": {name: [value / arguments.steps for value in values]
                         for name, values in seconds.items()},
        "ratio_largest_over_smallest": ratio,
        "buffer_bytes": buffers,
        "peak_bytes": peak,
    }  # fmt: skip
    record("kv_cache_capacity", "Step time and memory of preallocated caches", body, result)


if __name__ == "__main__":
    main()
