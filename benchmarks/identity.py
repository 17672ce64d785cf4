"""Is speculation exact? 200 prompts, answered plainly, with drafts, and by mlx-lm itself.

    python -m benchmarks.identity --model ember --weights quantized
    python -m benchmarks.identity --exact

Greedy answers must be the same token for token. Where a batch of five rows is computed by another
kernel than one row, two nearly equal logits can change places: such a position is printed with the
gap between its two best logits, so that a near-tie can be told from an error. With `--exact` the
prompts are answered exactly as well, in mlx-lm's place, and a table says what that costs.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import akunu_py
from akunu_py.bench.machine import describe_machine, machine_line
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.stats import Stats
from benchmarks.report import markdown_table, record
from benchmarks.workloads import KINDS, Workload, make_workloads

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm import stream_generate  # isort: skip


@dataclass(frozen=True)
class Difference:
    """The first position at which an answer parts from plain decoding's."""

    prompt: int
    kind: str
    pair: str
    position: int
    top_2_gap: float


def mlx_lm_answer(engine: Engine, prompt: list[int], max_tokens: int) -> list[int]:
    """What mlx-lm's own loop generates, greedily, end tokens left out."""
    responses = stream_generate(
        engine.model.original, engine.tokenizer.wrapped, prompt, max_tokens=max_tokens
    )
    tokens = [response.token for response in responses]
    return tokens[:-1] if tokens[-1] in engine.tokenizer.end_tokens else tokens


def top_2_gap(engine: Engine, tokens: list[int]) -> float:
    """How far apart the two best logits after `tokens` are, by a single-token forward."""
    cache = engine.model.make_cache(len(tokens))
    engine.model.prefill(tokens[:-1], cache)
    logits = engine.model.forward(mx.array(tokens[-1:]), cache)[0].astype(mx.float32)
    best = mx.sort(logits)[-2:]
    return cast(float, (best[1] - best[0]).item())


def first_difference(left: list[int], right: list[int]) -> int | None:
    """Where two answers part; None if they are the same."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


class Examinee:
    """Answers prompts in each of the ways that are compared, and sums up what that took.

    Args:
        engine: with the model.
        max_tokens: of an answer.
        drafter: who drafts.
        num_draft_tokens: the most drafts a forward verifies.
    """

    def __init__(
        self, engine: Engine, max_tokens: int, drafter: str, num_draft_tokens: int
    ) -> None:
        self.engine = engine
        self.max_tokens = max_tokens
        drafted = Options(max_tokens, drafter=drafter, num_draft_tokens=num_draft_tokens)
        self._ways = {
            "plain": Options(max_tokens, drafter="none"),
            "drafted": drafted,
            "exact": replace(drafted, exact=True),
        }
        self.costs = {way: Stats() for way in self._ways}

    def answer(self, way: str, prompt: list[int]) -> list[int]:
        """An answer's tokens; `way` is plain, drafted, exact or mlx-lm."""
        if way == "mlx-lm":
            return mlx_lm_answer(self.engine, prompt, self.max_tokens)
        self.engine.reset()
        completion = self.engine.generate(prompt, self._ways[way])
        self.costs[way].include(completion.stats)
        return completion.token_ids

    def cost_table(self) -> str:
        """What the answers took, a way a row."""
        rows = [
            [way, cost.generated_tokens, cost.target_calls, cost.rechecked, cost.recheck_calls,
             f"{cost.decode_s:.1f}"]
            for way, cost in self.costs.items()
            if cost.generated_tokens
        ]  # fmt: skip
        return markdown_table(
            ["answers", "tokens", "forwards", "near-ties", "forwards for them", "seconds"], rows
        )


def identity_table(
    workloads: Sequence[Workload], differences: Sequence[Difference], others: Sequence[str]
) -> str:
    """How many answers part from plain decoding's, a kind of prompt a row."""
    rows = []
    for kind in KINDS:
        parted = [found for found in differences if found.kind == kind]
        rows.append(
            [
                kind,
                sum(workload.kind == kind for workload in workloads),
                *(sum(found.pair == other for found in parted) for other in others),
                f"{max((found.top_2_gap for found in parted), default=0):.1e}",
            ]
        )
    names = [f"plain != {other}" for other in others]
    return markdown_table(["kind", "prompts", *names, "largest top-2 gap"], rows)


def main() -> None:
    """Runs the check and records it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--exact", action="store_true", help="check exact answers, not mlx-lm's")
    parser.add_argument("--name", default="identity", help="name of the recorded result")
    arguments = parser.parse_args()

    engine = akunu_py.load(arguments.model, weights=arguments.weights)
    machine = describe_machine(engine.backend)
    workloads = make_workloads(engine.tokenizer, engine.model.vocabulary_size, arguments.prompts)
    examinee = Examinee(engine, arguments.max_tokens, arguments.drafter, arguments.num_draft_tokens)
    others = ("drafted", "exact" if arguments.exact else "mlx-lm")
    differences: list[Difference] = []
    for index, workload in enumerate(workloads):
        prompt = workload.tokens[arguments.max_tokens - engine.model.context_length :]
        plain = examinee.answer("plain", prompt)
        for other in others:
            position = first_difference(plain, examinee.answer(other, prompt))
            if position is not None:
                gap = top_2_gap(engine, [*prompt, *plain[:position]])
                differences.append(Difference(index, workload.kind, other, position, gap))
                print(differences[-1], flush=True)

    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights, "
        f"drafter {arguments.drafter} of up to {arguments.num_draft_tokens}, "
        f"{arguments.max_tokens} tokens a prompt.\n\n"
        f"{identity_table(workloads, differences, others)}\n\n{examinee.cost_table()}"
    )
    result = {
        "machine": machine,
        "model": engine.model.name,
        "layout": engine.model.layout,
        "drafter": arguments.drafter,
        "prompts": len(workloads),
        "costs": {way: cost.as_dict() for way, cost in examinee.costs.items()},
        "logit_differences": engine.speculator.logit_differences,
        "differences": [asdict(found) for found in differences],
    }
    record(arguments.name, "Greedy identity", body, result)


if __name__ == "__main__":
    main()
