"""What sampling costs: rows of a large vocabulary, against mlx-lm's sampler row by row.

    python -m benchmarks.sampling_cost [--quick] [--rows 1 9] [--vocabulary 151936]

In each row, the token of rank n has a probability in proportion to n^-1.5: 0.38 for the first, and
0.95 for the first 212 together. mlx-lm samples one row at a time, because it verifies no drafts;
here all rows of a pass are sampled together. Both begin with logits and end with tokens. The
contestants take turns, so that other work of the machine slows all of them.

No GPU is needed to count what a row takes there: the operations of its graph, the bytes that these
read and write, and how many values they sort; a partition is a sort there.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any
from unittest.mock import patch

from akunu_py.bench.contestants import mlx_lm_sampler
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.machine.backend import find_backend
from akunu_py.options import Sampling
from akunu_py.sampling.sampler import Sampler
from benchmarks.records import markdown_table, options_of, paired_ratios, record, time_in_turns

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)

SAMPLINGS = {
    "greedy": Sampling(),
    "temperature alone": Sampling(temperature=0.8, seed=1),
    "top-k 40, top-p 0.95, min-p 0.05": Sampling(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1
    ),
    "top-k 40": Sampling(temperature=0.8, top_k=40, seed=1),
    "top-p 0.95": Sampling(temperature=0.8, top_p=0.95, seed=1),
    "min-p 0.05": Sampling(temperature=0.8, min_p=0.05, seed=1),
}
"""The third are the defaults of llama-server."""

VIEWS = {"Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Squeeze", "Unflatten"}
"""Operations that compute nothing."""
SORTS = {"Sort", "ArgSort", "Partition", "ArgPartition"}


def together(sampler: Sampler, logits: mx.array) -> None:
    mx.eval(sampler.choose(logits, 100))


def one_by_one(sampler: Callable[[mx.array], mx.array], logits: mx.array) -> None:
    """Samples row by row, as mlx-lm's `generate_step` does."""
    for row in range(logits.shape[0]):
        mx.eval(one_row(sampler, logits[row : row + 1]))


def one_row(sampler: Callable[[mx.array], mx.array], scores: mx.array) -> mx.array:
    return sampler(scores - mx.logsumexp(scores, axis=-1, keepdims=True))


def graph_on_gpu(choose: Callable[[mx.array], mx.array], row: mx.array) -> tuple[int, float, int]:
    """Of a row on a GPU: the operations, the MB that they read and write, and the values sorted."""
    steps: list[dict[str, Any]] = []
    with patch.object(mx, "default_device", lambda: mx.Device(mx.gpu)):
        mx.export_function(steps.append, choose, row)
    steps = [step for step in steps if step["type"] == "primitive" and step["name"] not in VIEWS]
    moved = sum(
        prod(shape) * dtype.size
        for step in steps
        for _, shape, dtype in step["inputs"] + step["outputs"]
    )
    sorts = [step for step in steps if step["name"] in SORTS]
    return len(steps), moved / 1e6, sum(prod(step["inputs"][0][1]) for step in sorts)


def contestants(sampling: Sampling, logits: mx.array) -> dict[str, Callable[[], None]]:
    """This project's sampler and mlx-lm's, for the same options."""
    return {
        "akunu_py": partial(together, Sampler(sampling), logits),
        "mlx-lm": partial(one_by_one, mlx_lm_sampler(sampling), logits),
    }


def main() -> None:
    parser = options_of(__doc__, name="sampling_cost", quick="3 turns instead of 21")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 9])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    arguments = parser.parse_args()

    repeats = 3 if arguments.quick else 21
    machine = describe_machine(find_backend())
    rows, seconds = [], {}
    graphs = []
    row = mx.random.normal((1, arguments.vocabulary))
    for name, sampling in SAMPLINGS.items():
        ours = graph_on_gpu(partial(Sampler(sampling).choose, position=100), row)
        theirs = graph_on_gpu(partial(one_row, mlx_lm_sampler(sampling)), row)
        pairs = zip(("d", ".1f", ",d"), ours, theirs, strict=True)
        graphs.append([name, *(f"{own:{form}} / {other:{form}}" for form, own, other in pairs)])
    for count in arguments.rows:
        noise = mx.random.normal((count, arguments.vocabulary), key=mx.random.key(0))
        logits = -1.5 * mx.log(1 + mx.argsort(noise, axis=-1))
        mx.eval(logits)
        for name, sampling in SAMPLINGS.items():
            took = time_in_turns(contestants(sampling, logits), repeats=repeats, warmups=2)
            ratio = paired_ratios(took["mlx-lm"], took["akunu_py"])
            spreads = [Spread.of([1e3 * value for value in took[who]]) for who in took]
            rows.append([count, name, *(f"{spread:.1f}" for spread in spreads), f"{ratio:.2f}"])
            seconds[f"{count} rows, {name}"] = took
    table = markdown_table(
        ["rows", "filters", "akunu_py, ms", "mlx-lm, ms", "time over mlx-lm's"], rows
    )
    counted = markdown_table(["filters", "operations", "MB moved", "values sorted"], graphs)
    body = (
        f"{machine_line(machine)}\n\nA vocabulary of {arguments.vocabulary}; medians of "
        f"{repeats} turns, with their quartiles.\n\n{table}\n\n"
        "What a step's row takes on a GPU, akunu_py / mlx-lm, by their graphs; not run there. A "
        "sort counts once, and passes over its values several times. The rows of a draft are never "
        f"sorted: a top-p waits for them, and looks at the likely ones.\n\n{counted}"
    )
    record(arguments.name, "What sampling costs", body, {"machine": machine, "seconds": seconds})


if __name__ == "__main__":
    main()
