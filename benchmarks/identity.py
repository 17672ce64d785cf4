"""Is speculation exact? 200 prompts, each answered plainly, with drafts, and by mlx-lm itself.

    python -m benchmarks.identity --model ember --weights quantized

Greedy answers must be the same token for token. Where a batch of five rows is computed by another
kernel than one row, two nearly equal logits can change places: such a position is printed with the
gap between its two best logits, so that a near-tie can be told from an error.
"""

import argparse
from dataclasses import asdict, dataclass

import akunu_py
from akunu_py.bench.machine import describe_machine, machine_line
from akunu_py.engine import Engine
from akunu_py.options import Options
from benchmarks.report import markdown_table, record
from benchmarks.workloads import KINDS, make_workloads

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm import stream_generate  # isort: skip


@dataclass(frozen=True)
class Difference:
    """The first position at which two answers part."""

    prompt: int
    kind: str
    pair: str
    position: int
    top_2_gap: float


def mlx_lm_answer(engine: Engine, prompt: list[int], max_tokens: int) -> list[int]:
    """What mlx-lm's own loop generates, greedily, end tokens left out."""
    responses = stream_generate(
        engine.model.network, engine.tokenizer.wrapped, prompt, max_tokens=max_tokens
    )
    tokens = [response.token for response in responses]
    return tokens[:-1] if tokens[-1] in engine.tokenizer.end_tokens else tokens


def top_2_gap(engine: Engine, tokens: list[int]) -> float:
    """How far apart the two best logits after `tokens` are, by a single-token forward."""
    cache = engine.model.make_cache(len(tokens))
    engine.model.prefill(tokens[:-1], cache)
    logits = engine.model.forward(mx.array(tokens[-1:]), cache)[0].astype(mx.float32)
    best = mx.sort(logits)[-2:]
    return float((best[1] - best[0]).item())


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Where two answers part; None if they are the same."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def main() -> None:
    """Runs the check and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--name", default="identity", help="name of the recorded result")
    arguments = parser.parse_args()

    engine = akunu_py.load(arguments.model, weights=arguments.weights)
    machine = describe_machine(engine.backend)
    workloads = make_workloads(engine.tokenizer, engine.model.vocabulary_size, arguments.prompts)
    differences: list[Difference] = []
    tokens = dict.fromkeys(KINDS, 0)
    forwards = dict.fromkeys(KINDS, 0)
    room = engine.model.context_length - arguments.max_tokens
    for index, workload in enumerate(workloads):
        prompt = workload.tokens[-room:]
        engine.reset()
        plain = engine.generate(prompt, Options(arguments.max_tokens, drafter="none"))
        engine.reset()
        drafted = engine.generate(prompt, Options(arguments.max_tokens, drafter=arguments.drafter))
        reference = mlx_lm_answer(engine, prompt, arguments.max_tokens)
        tokens[workload.kind] += drafted.stats.generated_tokens
        forwards[workload.kind] += drafted.stats.target_calls
        for pair, other in (("drafted", drafted.token_ids), ("mlx-lm", reference)):
            position = first_difference(plain.token_ids, other)
            if position is not None:
                gap = top_2_gap(engine, [*prompt, *plain.token_ids[:position]])
                found = Difference(index, workload.kind, f"plain / {pair}", position, gap)
                differences.append(found)
                print(found, flush=True)

    rows = []
    for kind in KINDS:
        of_kind = [workload for workload in workloads if workload.kind == kind]
        parted = [found for found in differences if found.kind == kind]
        rows.append(
            [
                kind,
                len(of_kind),
                tokens[kind],
                f"{tokens[kind] / max(1, forwards[kind]):.2f}",
                sum(found.pair.endswith("drafted") for found in parted),
                sum(found.pair.endswith("mlx-lm") for found in parted),
                f"{max((found.top_2_gap for found in parted), default=0):.1e}",
            ]
        )
    table = markdown_table(
        ["kind", "prompts", "tokens", "tokens per forward", "plain != drafted", "plain != mlx-lm",
         "largest top-2 gap"],
        rows,
    )  # fmt: skip
    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights, "
        f"drafter {arguments.drafter}, {arguments.max_tokens} tokens a prompt.\n\n{table}"
    )
    result = {
        "machine": machine,
        "model": engine.model.name,
        "layout": engine.model.layout,
        "drafter": arguments.drafter,
        "prompts": len(workloads),
        "differences": [asdict(found) for found in differences],
    }
    record(arguments.name, "Greedy identity", body, result)


if __name__ == "__main__":
    main()
