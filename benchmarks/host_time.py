"""What a forward takes of the host: the time to build its graph, in which a GPU waits.

    python -m benchmarks.host_time [--repeats 15]

Random 4-bit models with as many layers as those they are named after, and narrow ones, because the
time to build a graph does not depend on widths. Nothing computed counts, only the CPU time of the
thread that builds: from token ids to lazy choices, on a cache that holds a prompt. `network` is the
network as mlx-lm has it, called as decoding calls it; `traced` builds from traced operations, which
`akunu_py/traced.py` does on GPUs; `mlx-lm` is its own loop, a token at a time, on its own cache.

On a GPU, norms, rotary positions and attention are one operation each, and on a CPU many. The first
table builds graphs as a GPU gets them: one operation stands in for each of these, so results mean
nothing. The second builds those of a CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from statistics import median
from time import thread_time
from typing import Any, Final

from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler
from benchmarks.records import markdown_table, progress_line, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from akunu_py.cache.kv_cache import KVCache  # isort: skip
from akunu_py.cache.model_cache import make_kv_cache  # isort: skip
from akunu_py.traced import traced  # isort: skip
from mlx import nn  # isort: skip
from mlx_lm.models.cache import make_prompt_cache, trim_prompt_cache  # isort: skip

ROWS: Final = (1, 3, 5, 9)
PROMPT: Final = 64
NARROW: Final[dict[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "max_position_embeddings": 32768, "tie_word_embeddings": True,
}  # fmt: skip
MODELS: Final[dict[str, tuple[str, int]]] = {
    "Qwen2.5 1.5B": ("qwen2", 28),
    "Llama 3 8B": ("llama", 32),
    "Qwen3 8B": ("qwen3", 36),
}
"""The architecture and the number of layers of each."""

Build = Callable[[], Any]


def narrow_model(architecture: str, layers: int) -> nn.Module:
    """A random 4-bit network in bfloat16."""
    module = import_module(f"mlx_lm.models.{architecture}")
    settings = {**NARROW, "model_type": architecture, "num_hidden_layers": layers}
    network = module.Model(module.ModelArgs.from_dict(settings))
    nn.quantize(network, 64, 4)
    network.set_dtype(mx.bfloat16)
    mx.eval(network.parameters())
    return network


@contextmanager
def one_operation_each() -> Iterator[None]:
    """Lets one operation stand in for each that a GPU has a kernel of its own for."""
    names = ("rms_norm", "rope", "scaled_dot_product_attention")
    originals = {name: getattr(mx.fast, name) for name in names}
    for name in names:
        setattr(mx.fast, name, lambda first, *_args, **_named: mx.contiguous(first))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(mx.fast, name, original)


def seconds(build: Build, undo: Callable[[], Any]) -> float:
    """The CPU time that this thread takes to build a graph, which is then computed."""
    begun = thread_time()
    built = build()
    taken = thread_time() - begun
    mx.eval(built)
    undo()
    return taken


def contestants(network: nn.Module) -> dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]]:
    """By name, what builds a forward of so many rows, and what drops these rows afterwards."""
    found: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {}
    sampler = Sampler(Sampling())

    def ours(compute: Callable[..., mx.array], cache: KVCache, rows: int) -> mx.array:
        logits = compute(mx.array([[1] * rows]), cache=cache.layers)[0]
        cache.advance(rows)
        return sampler.choose(sampler.process_logits(logits, cache.length, mx.array([1])), 1)

    def back(cache: KVCache, _rows: int) -> None:
        cache.rollback(PROMPT)

    def theirs(cache: list[Any], rows: int) -> tuple[mx.array, mx.array]:
        logits = network(mx.array([[1] * rows]), cache=cache)[:, -1, :]
        logprobs = logits - mx.logsumexp(logits, keepdims=True)
        return mx.argmax(logprobs, axis=-1), logprobs.squeeze(0)

    compute = traced(network)
    assert compute is not None, "it cannot be traced"
    for name, form in (("network", network), ("traced", compute)):
        cache = make_kv_cache(network, PROMPT + max(ROWS))
        mx.eval(network(mx.ones((1, PROMPT), mx.int32), cache=cache.layers))
        cache.advance(PROMPT)
        found[name] = partial(ours, form, cache), partial(back, cache)
    own = make_prompt_cache(network)
    mx.eval(network(mx.ones((1, PROMPT), mx.int32), cache=own))
    found["mlx-lm"] = partial(theirs, own), lambda rows: trim_prompt_cache(own, rows)
    return found


def measure(network: nn.Module, repeats: int) -> dict[str, dict[int, float]]:
    """The median seconds of each contestant, by number of rows; mlx-lm has one row only."""
    found: dict[str, dict[int, float]] = {}
    takes_part = contestants(network)
    for rows in ROWS:
        times: dict[str, list[float]] = {name: [] for name in takes_part}
        for _ in range(repeats + 2):  # two warm-ups: the first traces
            for name, (build, undo) in takes_part.items():
                if rows == 1 or name != "mlx-lm":
                    times[name].append(seconds(partial(build, rows), partial(undo, rows)))
        for name, taken in times.items():
            if taken:
                found.setdefault(name, {})[rows] = median(taken[2:])
    return found


def table(results: dict[str, dict[str, dict[int, float]]]) -> str:
    """Milliseconds, a line for each model and contestant."""
    lines = [
        [model, name, *(f"{by_rows[rows] * 1e3:.2f}" if rows in by_rows else "" for rows in ROWS)]
        for model, found in results.items()
        for name, by_rows in found.items()
    ]
    return markdown_table(["model", "", *(f"{rows} rows" for rows in ROWS)], lines)


def main() -> None:
    """Measures every model with both kinds of graphs, and records the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()

    backend = find_backend()
    graphs: dict[str, dict[str, dict[str, dict[int, float]]]] = {"gpu": {}, "cpu": {}}
    show = progress_line("models")
    for done, (name, (architecture, layers)) in enumerate(MODELS.items(), 1):
        network = narrow_model(architecture, layers)
        title = f"{name} ({layers} layers)"
        graphs["cpu"][title] = measure(network, options.repeats)
        with one_operation_each():
            graphs["gpu"][title] = measure(network, options.repeats)
        show(done, len(MODELS))
    machine = describe_machine(backend)
    record(
        "host_time",
        "Building the graph of a forward",
        f"{machine_line(machine)}. Medians of {options.repeats}, milliseconds of CPU time of one "
        "thread; made by `python -m benchmarks.host_time`, which says what is compared.\n\n"
        f"Graphs as a GPU gets them:\n\n{table(graphs['gpu'])}\n\n"
        f"Graphs of a CPU:\n\n{table(graphs['cpu'])}",
        {"machine": machine, "repeats": options.repeats, "graphs": graphs},
    )


if __name__ == "__main__":
    main()
