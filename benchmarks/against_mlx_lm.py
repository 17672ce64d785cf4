"""akunu_py against mlx-lm's own pipelined loop: same process, same weights, same BLAS, in turns.

    python -m benchmarks.against_mlx_lm

Two questions. Without drafts, is decoding as fast? On requests that ask for their own code back
with a name changed, is speculation faster, and by what its tokens per forward predict? The
prediction takes the measured cost of a pipelined step and of each verifying round.
"""

import argparse
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter

import akunu_py
from akunu_py.bench.machine import describe_machine, machine_line
from akunu_py.bench.timing import Spread
from akunu_py.calibration import measure_cost_curve
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.stats import Stats
from benchmarks.report import markdown_table, record
from benchmarks.workloads import Workload, make_workloads

from mlx_lm import stream_generate  # isort: skip  (after akunu_py, which loads the BLAS)

CONTEXT = 256
"""Tokens of context at which costs are measured for the prediction."""


@dataclass(frozen=True)
class Run:
    """One answer: the seconds its decoding took, its tokens, and akunu's books if it was ours."""

    seconds: float
    tokens: list[int]
    stats: Stats | None = None

    @property
    def seconds_per_token(self) -> float:
        """Decoding seconds over tokens; an answer without any counts as one."""
        return self.seconds / max(1, len(self.tokens))


def run_akunu(engine: Engine, prompt: list[int], options: Options) -> Run:
    """An answer by the engine, its prompt computed afresh; decoding time only."""
    engine.reset()
    answer = engine.generate(prompt, options)
    return Run(answer.stats.decode_s, answer.token_ids, answer.stats)


def run_mlx_lm(engine: Engine, prompt: list[int], max_tokens: int) -> Run:
    """An answer by mlx-lm; what it reports as prompt time, first token included, is left out."""
    begun = perf_counter()
    tokens = []
    for response in stream_generate(
        engine.model.network, engine.tokenizer.wrapped, prompt, max_tokens=max_tokens
    ):
        tokens.append(response.token)
    seconds = perf_counter() - begun - response.prompt_tokens / response.prompt_tps
    if tokens[-1] in engine.tokenizer.end_tokens:
        tokens.pop()
    return Run(seconds, tokens)


def predicted_speedup(stats: Stats, step: float, rounds: dict[int, float]) -> float:
    """What the books of a request promise: the time of single steps over that of its rounds."""
    drafted_rounds = stats.target_calls - stats.plain
    mean_size = 1 + stats.drafted / drafted_rounds if drafted_rounds else 1
    size = min(rounds, key=lambda known: abs(known - mean_size))
    spent = stats.plain * step + drafted_rounds * rounds[size]
    return stats.generated_tokens * step / spent


def compare(
    engine: Engine, workloads: list[Workload], contestants: dict[str, Options], repeats: int
) -> dict[str, list[tuple[Run, Run]]]:
    """Pairs of (ours, mlx-lm's) answers, taken next to one another in a shuffled order."""
    pairs: dict[str, list[tuple[Run, Run]]] = {name: [] for name in contestants}
    shuffle = Random(0).shuffle
    for repeat in range(-1, repeats):
        for workload in workloads:
            order = list(contestants.items())
            shuffle(order)
            for name, options in order:
                ours = run_akunu(engine, workload.tokens, options)
                theirs = run_mlx_lm(engine, workload.tokens, options.max_tokens or 0)
                if repeat >= 0 and theirs.tokens:
                    pairs[name].append((ours, theirs))
    return pairs


def main() -> None:
    """Runs both comparisons and records them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--drafts", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--name", default="against_mlx_lm", help="name of the recorded result")
    arguments = parser.parse_args()

    engine = akunu_py.load(arguments.model, weights=arguments.weights)
    machine = describe_machine(engine.backend)
    made = make_workloads(
        engine.tokenizer, engine.model.vocabulary_size, 4 * arguments.prompts, seed=1
    )
    limit = arguments.max_tokens
    plain = {"plain": Options(limit, drafter="none")}
    planner = {"auto, planner": Options(limit)}
    drafting = planner | {
        f"{drafter}, {drafts} drafts": Options(limit, drafter=drafter, num_draft_tokens=drafts)
        for drafter in ("ngram", "auto")
        for drafts in arguments.drafts
    }
    curve = measure_cost_curve(engine.model, budget_s=20, contexts=(CONTEXT,))
    step = curve.step(CONTEXT)
    rounds = {size: curve.cost(size, CONTEXT) for size in range(1, curve.longest + 1)}
    rows, result = [], []
    for kind, contestants in (("all kinds", plain), ("edit", drafting)):
        workloads = [workload for workload in made if kind in ("all kinds", workload.kind)]
        for name, pairs in compare(engine, workloads, contestants, arguments.repeats).items():
            speedup = Spread.of([b.seconds_per_token / a.seconds_per_token for a, b in pairs])
            books = [ours.stats for ours, _ in pairs if ours.stats]
            per_call = sum(s.generated_tokens for s in books) / sum(s.target_calls for s in books)
            predicted = median(predicted_speedup(stats, step, rounds) for stats in books)
            same = sum(ours.tokens == theirs.tokens for ours, theirs in pairs)
            ours_ms = Spread.of([1e3 * ours.seconds_per_token for ours, _ in pairs])
            theirs_ms = Spread.of([1e3 * theirs.seconds_per_token for _, theirs in pairs])
            rows.append(
                [kind, name, len(pairs), f"{theirs_ms:.2f}", f"{ours_ms:.2f}", f"{speedup:.2f}",
                 f"{per_call:.2f}", f"{predicted:.2f}", f"{same}/{len(pairs)}"]
            )  # fmt: skip
            result.append(
                {"workload": kind, "contestant": name, "pairs": len(pairs),
                 "speedup": speedup.median, "speedup_quartiles": [speedup.low, speedup.high],
                 "tokens_per_call": per_call, "predicted_speedup": predicted, "same_tokens": same}
            )  # fmt: skip
            print(rows[-1], flush=True)
    table = markdown_table(
        ["workload", "akunu_py", "pairs", "mlx-lm, ms a token", "akunu_py, ms a token",
         "speedup", "tokens per forward", "predicted speedup", "same tokens"],
        rows,
    )  # fmt: skip
    costs = ", ".join(f"{size}: {1e3 * seconds:.2f}" for size, seconds in rounds.items())
    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights, "
        f"{limit} tokens at most, decoding time only, medians (quartiles) of interleaved pairs.\n\n"
        f"{table}\n\nA pipelined step takes {1e3 * step:.2f} ms; a synchronised round over so many "
        f"tokens, in ms: {costs}."
    )
    record(
        arguments.name,
        "akunu_py against mlx-lm",
        body,
        {"machine": machine, "model": engine.model.name, "layout": engine.model.layout,
         "step_seconds": step, "round_seconds": rounds, "comparisons": result},
    )  # fmt: skip


if __name__ == "__main__":
    main()
