"""Is draft_session exact? 200 prompts, answered plainly, by mlx-lm itself, and with drafts.

    python -m benchmarks.identity --model ember --weights quantized
    python -m benchmarks.identity --drafters all --exact --limit 40 --max-tokens 32

Greedy answers must be the same token for token, whoever drafts. Where a batch of five rows is
computed by another kernel than one row, two nearly equal logits can change places: such a position
is printed with the gap between its two best logits, so that a near-tie can be told from an error.
With `--exact` the prompts are answered exactly as well, and a table says what that costs. Plain
answers and mlx-lm's are computed once for all drafters.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final, cast

import akunu_py
from akunu_py.bench.machine import describe_machine, machine_line
from akunu_py.drafting import DRAFTER_NAMES, MODEL_DRAFTER
from akunu_py.drafting.ngram_model import NGramModel, bigram, trigram
from akunu_py.drafting.ngram_model_drafter import NGramModelDrafter
from akunu_py.engine import Engine
from akunu_py.options import DEFAULT_DRAFT_TOKENS, Options
from akunu_py.sampling.sampler import Sampler
from akunu_py.stats import Stats
from benchmarks.report import markdown_table, record
from benchmarks.workloads import KINDS, Workload, make_workloads

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm import stream_generate  # isort: skip

MLX_LM: Final = "mlx-lm"
PLAIN: Final = "plain"
_ALL: Final = "all"
_STATISTICAL: Final = {"bigram": bigram, "trigram": trigram}
_NEARLY_GREEDY: Final = 0.1
DRAFTERS: Final = (
    *(name for name in DRAFTER_NAMES if name != "none"),
    *_STATISTICAL,
    MODEL_DRAFTER,
)
"""Everyone who drafts: those with a name, the statistical models, and the model itself."""


@dataclass(frozen=True)
class Difference:
    """The first position at which an answer parts from plain decoding's."""

    prompt: int
    kind: str
    answers: str
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
        drafters: who drafts.
        num_draft_tokens: the most drafts a forward verifies.
        exact: whether every drafter answers exactly as well.

    Attributes:
        others: the ways that are compared with plain decoding.
        costs: what each way but mlx-lm's took.
    """

    def __init__(
        self,
        engine: Engine,
        max_tokens: int,
        drafters: Sequence[str],
        num_draft_tokens: int,
        *,
        exact: bool,
    ) -> None:
        self._engine = engine
        self._max_tokens = max_tokens
        self._ways = {PLAIN: Options(max_tokens, drafter="none")}
        for name in drafters:
            drafted = Options(max_tokens, drafter=name, num_draft_tokens=num_draft_tokens)
            self._ways[name] = drafted
            if exact:
                self._ways[f"{name}, exact"] = replace(drafted, exact=True)
        self.others = (MLX_LM, *(way for way in self._ways if way != PLAIN))
        self.costs = {way: Stats() for way in self._ways}

    def examine(self, index: int, workload: Workload) -> list[Difference]:
        """Answers a prompt in every way, and tells which answers part from the plain one."""
        prompt = workload.tokens[self._max_tokens - self._engine.model.context_length :]
        plain = self._answer(PLAIN, prompt)
        found = []
        for other in self.others:
            position = first_difference(plain, self._answer(other, prompt))
            if position is not None:
                gap = top_2_gap(self._engine, [*prompt, *plain[:position]])
                found.append(Difference(index, workload.kind, other, position, gap))
        return found

    def _answer(self, way: str, prompt: list[int]) -> list[int]:
        if way == MLX_LM:
            return mlx_lm_answer(self._engine, prompt, self._max_tokens)
        self._engine.reset()
        completion = self._engine.generate(prompt, self._ways[way])
        self.costs[way].include(completion.stats)
        return completion.token_ids

    def cost_table(self) -> str:
        """What the answers took, a way a row.

        A drafter that learns across requests has answered each prompt once before it answers it
        exactly, and drafts the better for it.
        """
        rows = [
            [way, cost.generated_tokens, cost.target_forwards, cost.drafted, cost.accepted,
             cost.rechecked, cost.recheck_forwards, f"{cost.decode_s:.1f}"]
            for way, cost in self.costs.items()
        ]  # fmt: skip
        return markdown_table(
            ["answers", "tokens", "forwards", "drafted", "accepted", "near-ties",
             "forwards for them", "seconds"],
            rows,
        )  # fmt: skip


def identity_table(
    workloads: Sequence[Workload], differences: Sequence[Difference], others: Sequence[str]
) -> str:
    """How many answers part from plain decoding's, by the kind of prompt, a way a row."""
    kinds = [workload.kind for workload in workloads]
    rows = []
    for other in others:
        parted = [found for found in differences if found.answers == other]
        rows.append(
            [
                other,
                *(sum(found.kind == kind for found in parted) for kind in KINDS),
                len(parted),
                f"{max(found.top_2_gap for found in parted):.1e}" if parted else "-",
            ]
        )
    heads = [f"{kind} (of {kinds.count(kind)})" for kind in KINDS]
    total = f"all (of {len(kinds)})"
    return markdown_table(["plain != ...", *heads, total, "largest top-2 gap"], rows)


def load_engine(arguments: argparse.Namespace, drafters: Sequence[str]) -> Engine:
    """The engine; where the draft model is among the drafters, the model drafts for itself."""
    return akunu_py.load(
        arguments.model,
        weights=arguments.weights,
        draft_model=arguments.model if MODEL_DRAFTER in drafters else None,
    )


def add_statistical_drafters(engine: Engine, workloads: Sequence[Workload]) -> None:
    """Lets requests name the statistical models, which are counted on the prompts."""
    streams = [workload.tokens for workload in workloads]
    for name, count in _STATISTICAL.items():
        model = count(engine.model.vocabulary_size, streams)
        engine.speculation.add_drafter(name, partial(_statistical_drafter, model))


def _statistical_drafter(model: NGramModel, sampler: Sampler) -> NGramModelDrafter:
    return NGramModelDrafter(model, temperature=_NEARLY_GREEDY, seed=sampler.seed)


def read_arguments() -> argparse.Namespace:
    """What is to be checked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="ember")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--limit", type=int, default=200, help="prompts, the four kinds in turns")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafters", nargs="+", choices=(*DRAFTERS, _ALL), default=["ngram"])
    parser.add_argument("--num-draft-tokens", type=int, default=DEFAULT_DRAFT_TOKENS)
    parser.add_argument("--exact", action="store_true", help="answer exactly as well")
    parser.add_argument("--name", default="identity", help="name of the recorded result")
    return parser.parse_args()


def main() -> None:
    """Runs the check and records it."""
    arguments = read_arguments()
    drafters = DRAFTERS if _ALL in arguments.drafters else tuple(dict.fromkeys(arguments.drafters))
    engine = load_engine(arguments, drafters)
    machine = describe_machine(engine.backend)
    workloads = make_workloads(engine.tokenizer, engine.model.vocabulary_size, arguments.limit)
    add_statistical_drafters(engine, workloads)
    examinee = Examinee(
        engine,
        arguments.max_tokens,
        drafters,
        arguments.num_draft_tokens,
        exact=arguments.exact,
    )
    differences: list[Difference] = []
    for index, workload in enumerate(workloads):
        for found in examinee.examine(index, workload):
            differences.append(found)
            print(found, flush=True)

    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights, "
        f"up to {arguments.num_draft_tokens} drafts a forward, "
        f"{arguments.max_tokens} tokens a prompt.\n\n"
        f"{identity_table(workloads, differences, examinee.others)}\n\n{examinee.cost_table()}"
    )
    result = {
        "machine": machine,
        "model": engine.model.name,
        "layout": engine.model.layout,
        "drafters": list(drafters),
        "num_draft_tokens": arguments.num_draft_tokens,
        "max_tokens": arguments.max_tokens,
        "prompts": len(workloads),
        "costs": {way: cost.as_dict() for way, cost in examinee.costs.items()},
        "logit_differences": engine.speculation.logit_differences,
        "differences": [asdict(found) for found in differences],
    }
    record(arguments.name, "Greedy identity", body, result)


if __name__ == "__main__":
    main()
