"""What drafting brings on two ranks, by the latency of the messages between them.

    python -m benchmarks.ranks_latency [--model NAME] [--latencies 0 0.3 3] [--prompts 4]

For each latency, two processes of this machine run the model, connected by MLX's ring. After each
sum over both of them, of a layer or of rank 0's message, both sleep as long before they use it.
Answers to edits are forced, so that drafts are accepted as often as with a good model. Plain and
drafted answers take turns. The prediction has the costs that calibration measured with the first
latency, and adds the rest of the latency for each sum of a forward.

The sleep is no part of what MLX computes lazily, so no step overlaps with another one here.
`mlx.launch` would keep a core busy, so this script starts the processes itself.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Any, Final

import akunu_py
from akunu_py.bench.contestants import Akunu, Task
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.workloads import make_workloads
from akunu_py.cache.kv_cache import KVCache
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.engine import Engine
from akunu_py.machine.backend import find_backend, launched_rank
from akunu_py.model.target_model import TargetModel
from akunu_py.planning.cost_curve import CostCurve, CostLevel
from benchmarks.records import markdown_table, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)

RANKS: Final = 2
CONTEXT: Final = 128


class SlowSums:
    """MLX's sum over all ranks, computed at once and followed by a sleep.

    Sums of a forward that is built and never computed, as rank 0 does to learn what a cache takes,
    stay lazy: no other rank takes part in them.
    """

    def __init__(self, seconds: float) -> None:
        self.count = self.forwards = 0
        self._seconds = seconds
        self._is_forward = False
        self._sum: Callable[..., mx.array] = mx.distributed.all_sum
        mx.distributed.all_sum = self  # type: ignore[assignment]  # where layers look it up
        compute = TargetModel.forward

        def forward(model: TargetModel, tokens: mx.array, cache: KVCache) -> mx.array:
            self._is_forward = True
            self.forwards += 1
            try:
                return compute(model, tokens, cache)
            finally:
                self._is_forward = False

        TargetModel.forward = forward  # type: ignore[assignment, method-assign]

    def __call__(self, value: mx.array, **where: Any) -> mx.array:
        result = self._sum(value, **where)
        is_message = value.dtype == mx.int32  # of rank 0; layers have other numbers
        if self._is_forward or is_message:
            mx.eval(result)
            sleep(self._seconds)
            self.count += 1
        return result


def measure(
    engine: Engine, args: argparse.Namespace, slow: SlowSums, first: CostCurve | None
) -> dict[str, Any]:
    """What was measured with one latency; `first` has the costs with the first one."""
    samples = [one for one in make_workloads(args.prompts) if one.kind == "edit"]
    room = engine.context_limit - args.tokens
    cases = [
        case for case in encode_samples(engine.tokenizer, samples)["edit"]
        if 1 < len(case.prompt) <= room
    ]  # fmt: skip
    tasks = [Task("edit", case, args.tokens, forced=True) for case in cases]
    curve = measure_cost_curve(engine.model, budget_s=args.seconds, contexts=(CONTEXT,))
    own = Engine(engine.model, engine.backend, calibrate=lambda *_: curve)
    slow.count = slow.forwards = 0
    pairs = [
        [Akunu(name).complete(own, task) for name in ("none", "auto")]
        for task in tasks[:1] + tasks * args.repeats
    ]
    timed = [(plain, drafted) for plain, drafted in pairs[1:] if plain and drafted]
    sums = round(slow.count / slow.forwards)
    more_s = 1e-3 * (args.latencies[0] - args.first_latency) * sums
    expected = slower(first or curve, more_s)

    def median(values: list[float]) -> float:
        return Spread.of(values).median

    return {
        "latency_ms": args.latencies[0],
        "sums": sums,
        "step_ms": 1e3 * curve.decode_s(CONTEXT),
        "expected_step_ms": 1e3 * expected.decode_s(CONTEXT),
        "plain": median([1 / plain.seconds_per_token for plain, _ in timed]),
        "drafted": median([1 / drafted.seconds_per_token for _, drafted in timed]),
        "ratios": [plain.seconds_per_token / drafted.seconds_per_token for plain, drafted in timed],
        "predicted": median([drafted.rounds.predicted_speedup(expected) for _, drafted in timed]),
        "tokens_per_forward": median([drafted.rounds.tokens_per_forward for _, drafted in timed]),
        "curve": curve.as_json(),
    }


def slower(curve: CostCurve, seconds: float) -> CostCurve:
    """The costs if each forward takes so many seconds more."""
    return replace(
        curve,
        levels=tuple(
            CostLevel(
                level.context,
                level.decode_s + seconds,
                tuple((size, cost + seconds) for size, cost in level.verify_s),
            )
            for level in curve.levels
        ),
    )


def run_rank(args: argparse.Namespace) -> None:
    """Measures one latency as one of the ranks; rank 0 prints the result."""
    slow = SlowSums(1e-3 * args.latencies[0])
    engine = akunu_py.load(args.model)  # ends here in the other rank
    first = None if args.first_curve is None else CostCurve.from_json(json.loads(args.first_curve))
    row = measure(engine, args, slow, first) | {"ranks": engine.model.ranks}
    print(json.dumps(row), flush=True)


def launch(words: list[str]) -> dict[str, Any]:
    """Runs this script on all ranks; returns what rank 0 printed."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(RANKS)]
    hosts = [["{}:{}".format(*one.getsockname())] for one in sockets]
    for one in sockets:
        one.close()
    with TemporaryDirectory() as folder:
        file = Path(folder, "hosts.json")
        file.write_text(json.dumps(hosts), encoding="utf-8")
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.ranks_latency", *words],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(file)},
            )
            for rank in range(RANKS)
        ]
        printed = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit(f"Exit codes of the ranks: {[process.returncode for process in processes]}")
    row: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return row


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.3, 3.0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each calibration")
    parser.add_argument("--name", default="ranks_latency")
    parser.add_argument("--first-latency", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--first-curve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if launched_rank() is not None:
        run_rank(args)
        return
    rows: list[dict[str, Any]] = []
    for latency in args.latencies:
        words = [*sys.argv[1:], "--latencies", str(latency)]
        words += ["--first-latency", str(args.latencies[0])]
        if rows:
            words += ["--first-curve", json.dumps(rows[0]["curve"])]
        rows.append(launch(words))
    machine = describe_machine(find_backend())
    heads = ("latency", "a step", "predicted", "plain", "drafted", "drafted over plain",
             "predicted", "tokens per forward")  # fmt: skip
    table = markdown_table(
        heads,
        [
            (
                f"{row['latency_ms']:g} ms", f"{row['step_ms']:.1f} ms",
                f"{row['expected_step_ms']:.1f} ms", f"{row['plain']:.1f} tokens/s",
                f"{row['drafted']:.1f} tokens/s", f"{Spread.of(row['ratios']):.2f}",
                f"{row['predicted']:.2f}", f"{row['tokens_per_forward']:.2f}",
            )
            for row in rows
        ],
    )  # fmt: skip
    about = (
        f"Edits, forced; {args.model} on {rows[0]['ranks']}, {rows[0]['sums']} messages a forward. "
        f"Medians, with their quartiles in brackets. {machine_line(machine)}"
    )
    result = {"machine": machine, "model": args.model, "rows": rows}
    record(args.name, "Two ranks, by the latency of their messages", f"{about}\n\n{table}", result)


if __name__ == "__main__":
    main()
