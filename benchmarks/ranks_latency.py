"""What drafting brings on two ranks, by the latency of the messages between them.

    python -m benchmarks.ranks_latency [--model NAME] [--latencies 0 0.3 3] [--prompts 4]

Two processes of this machine run the model, connected by MLX's ring. After each message between
them, rank 0 waits for as many milliseconds more; the other rank waits for it. Answers to edits are
forced, so that drafts are accepted as often as with a good model. Plain and drafted answers take
turns. The prediction has the costs that calibration measured with all ranks and the same latency.
"""

import argparse
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

import akunu_py
from akunu_py.backend import find_backend, launched_rank
from akunu_py.bench.contestants import Akunu, Task
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.workloads import make_workloads
from akunu_py.calibration import measure_cost_curve
from akunu_py.engine import Engine
from benchmarks.records import markdown_table, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)


class SlowSums:
    """MLX's sum over all ranks, computed at once, and followed by a sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._sum: Callable[..., mx.array] = mx.distributed.all_sum
        mx.distributed.all_sum = self  # type: ignore[assignment]  # where layers look it up

    def __call__(self, value: mx.array, **where: Any) -> mx.array:
        result = self._sum(value, **where)
        mx.eval(result)  # always, and on all ranks: they must compute the same sums
        sleep(self.seconds)
        return result


def measure(engine: Engine, args: argparse.Namespace, slow: SlowSums) -> list[dict[str, Any]]:
    """A row for each latency."""
    samples = [one for one in make_workloads(args.prompts) if one.kind == "edit"]
    room = engine.context_limit - args.tokens
    cases = [
        case for case in encode_samples(engine.tokenizer, samples)["edit"]
        if 1 < len(case.prompt) <= room
    ]  # fmt: skip
    tasks = [Task("edit", case, args.tokens, forced=True) for case in cases]
    rows = []
    for latency in args.latencies:
        slow.seconds = latency / 1e3
        curve = measure_cost_curve(engine.model, budget_s=args.seconds, contexts=(128,))
        own = Engine(engine.model, engine.backend, calibrate=lambda *_, curve=curve: curve)
        pairs = []
        for task in tasks[:1] + tasks * args.repeats:
            both = [Akunu(name).complete(own, task) for name in ("none", "auto")]
            pairs.append(both)
        timed = [(plain, auto) for plain, auto in pairs[1:] if plain and auto]
        ratios = [plain.seconds_per_token / auto.seconds_per_token for plain, auto in timed]
        rows.append(
            {
                "latency_ms": latency,
                "step_ms": 1e3 * curve.decode_s(128),
                "plain": Spread.of([1 / plain.seconds_per_token for plain, _ in timed]).median,
                "drafted": Spread.of([1 / auto.seconds_per_token for _, auto in timed]).median,
                "ratio": Spread.of(ratios).median,
                "predicted": Spread.of(
                    [auto.rounds.predicted_speedup(curve) for _, auto in timed]
                ).median,
                "tokens_per_forward": Spread.of(
                    [auto.rounds.tokens_per_forward for _, auto in timed]
                ).median,
            }
        )
    return rows


def launch(words: list[str]) -> int:
    """Runs this program on two ranks of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [sys.executable, "-m", "benchmarks.ranks_latency", *words]
    launcher = Path(sys.executable).parent / "mlx.launch"
    command = [str(launcher), "-n", "2", "-p", port, "--backend", "ring", "--", *program]
    # It would read an empty standard input again and again.
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        return process.wait()


def main() -> None:
    """Runs the measurement and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.3, 3.0])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each calibration")
    parser.add_argument("--name", default="ranks_latency")
    args = parser.parse_args()
    if launched_rank() is None:
        sys.exit(launch(sys.argv[1:]))
    machine = describe_machine(find_backend())
    slow = SlowSums()
    engine = akunu_py.load(args.model)  # ends here in the other rank
    rows = measure(engine, args, slow)
    heads = ("latency", "a step", "plain", "drafted", "drafted over plain", "predicted",
             "tokens per forward")  # fmt: skip
    table = markdown_table(
        heads,
        [
            (
                f"{row['latency_ms']:g} ms", f"{row['step_ms']:.1f} ms",
                f"{row['plain']:.1f} tokens/s", f"{row['drafted']:.1f} tokens/s",
                f"{row['ratio']:.2f}", f"{row['predicted']:.2f}",
                f"{row['tokens_per_forward']:.2f}",
            )
            for row in rows
        ],
    )  # fmt: skip
    about = f"Edits, forced; {args.model} on {engine.model.ranks}. {machine_line(machine)}"
    result = {"machine": machine, "model": args.model, "rows": rows}
    record(args.name, "Two ranks, by the latency of their messages", f"{about}\n\n{table}", result)


if __name__ == "__main__":
    main()
