"""What attention to quantized keys and values costs, beside mlx-lm's own quantized cache.

    python -m benchmarks.kv_quantization [--repeats 15]

A random Llama of a few layers decodes after contexts of random keys and values. Every contestant
runs mlx-lm's layers, so only the caches differ: mlx-lm's, ours in each form that attention can read
(`options.KVQuantization`), and ours without quantization. They run in turns.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, Final, get_args

from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.cache.kv_cache import KVCache
from akunu_py.cache.model_cache import make_kv_cache
from akunu_py.machine.backend import find_backend
from akunu_py.options import KV_BITS, KVForm, KVQuantization
from benchmarks.records import markdown_table, record
from benchmarks.turns import paired_ratios, time_in_turns

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm.models import llama  # isort: skip
from mlx_lm.models.cache import QuantizedKVCache  # isort: skip

CONFIG: Final = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 512, "intermediate_size": 1536,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 16384,
}  # fmt: skip
SETTINGS: Final = (("float32", 1024), ("float32", 8192), ("bfloat16", 1024))
"""Types of the weights, and tokens of context."""
ROWS: Final = (1, 5)
"""Tokens per forward: a step, and a draft of four tokens."""
GROUP: Final = 64
FORMS: Final[tuple[KVForm, ...]] = get_args(KVForm)
_BASELINE: Final = "mlx-lm"
_DTYPES: Final = {"float32": mx.float32, "bfloat16": mx.bfloat16}


def contestants(
    network: llama.Model, context: int, bits: int, rows: int
) -> dict[str, Callable[[], None]]:
    """Functions that run a forward after a context, and return to it."""
    dtype = network.model.norm.weight.dtype
    keys = [
        mx.random.normal((1, 2, context, 64), key=mx.random.key(seed)).astype(dtype)
        for seed in range(2)
    ]
    theirs = [QuantizedKVCache(GROUP, bits) for _ in network.layers]
    for layer in theirs:
        mx.eval(layer.update_and_fetch(*keys))
    found: dict[str, Callable[[], None]] = {
        _BASELINE: partial(_run, network, theirs, rows, partial(_trim, theirs, context))
    }
    # As after a prompt: its large arrays teach the system's allocator to keep memory.
    _run(network, theirs, 512, partial(_trim, theirs, context))
    for name, quantization in (
        *((form, KVQuantization(bits, GROUP, 0, form)) for form in FORMS),
        ("not quantized", None),
    ):
        cache = make_kv_cache(network, context + 64, quantization)
        for layer in cache.layers:
            mx.eval(layer.update_and_fetch(*keys))
        cache.advance(context)
        back = partial(_roll_back, cache, context, rows)
        found[name] = partial(_run, network, cache.layers, rows, back)
    return found


def _run(network: llama.Model, layers: list[Any], rows: int, back: Callable[[], None]) -> None:
    mx.eval(network(mx.arange(rows)[None], cache=layers))
    back()


def _trim(layers: list[Any], context: int) -> None:
    for layer in layers:
        layer.trim(layer.offset - context)


def _roll_back(cache: KVCache, context: int, rows: int) -> None:
    cache.advance(rows)
    cache.rollback(context)


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    machine = describe_machine(find_backend())
    mx.random.seed(0)
    network = llama.Model(llama.ModelArgs.from_dict(CONFIG))
    table, found = [], []
    for dtype_name, context in SETTINGS:
        network.set_dtype(_DTYPES[dtype_name])
        mx.eval(network.parameters())
        for bits in KV_BITS:
            for rows in ROWS:
                runs = contestants(network, context, bits, rows)
                seconds = time_in_turns(runs, repeats=repeats)
                each = {name: [1e3 * value for value in values] for name, values in seconds.items()}
                ratios = {
                    name: paired_ratios(values, seconds[_BASELINE])
                    for name, values in seconds.items()
                }
                table.append([
                    dtype_name, f"{context:,}", bits, rows,
                    f"{Spread.of(each[_BASELINE]):.1f}",
                    *(f"{ratios[name]:.2f}" for name in list(runs)[1:]),
                ])  # fmt: skip
                found.append(
                    {"dtype": dtype_name, "context": context, "bits": bits, "rows": rows}
                    | {"milliseconds": each}
                )
                print(*table[-1], flush=True)
    body = (
        f"{machine_line(machine)}\n\nA random Llama of 4 layers, 8 heads that share 2 heads of "
        f"keys, groups of {GROUP}, {repeats} turns: milliseconds of a forward with mlx-lm's cache, "
        "and how many times as fast the others are, with quartiles in brackets.\n\n"
        + markdown_table(
            ["weights", "context", "bits", "tokens", "mlx-lm, ms", *FORMS, "not quantized"], table,
        )
        + "\n\nThe engine uses `bytewise` on a CPU and `packed` on a GPU: `Backend.kv_form`."
    )  # fmt: skip
    record(
        "kv_quantization", "Attention to quantized keys", body, {"machine": machine, "rows": found}
    )


if __name__ == "__main__":
    main()
