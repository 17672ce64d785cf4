"""Do drafts change greedy answers? 200 prompts, answered plainly, by mlx-lm, and with drafts.

    python -m benchmarks.identity --name identity_dense --weights dense --drafters auto ngram
    python -m benchmarks.identity --name identity_quantized --weights quantized --max-tokens 16
    python -m benchmarks.identity --name identity_drafters --drafters all --exact --max-tokens 16

Greedy answers must be the same token for token with every drafter. Where a batch of five rows is
computed by another kernel than one row, two nearly equal logits can change places. Such a position
is printed with the gap between its two best logits, which distinguishes a near-tie from an error.
With `--exact` the prompts are also answered exactly.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

import akunu_py
from akunu_py.bench.device_report import (
    KINDS,
    Difference,
    Prompt,
    find_differences,
    identity_table,
    make_prompts,
    mlx_lm_answer,
)
from akunu_py.bench.measurement import describe_machine, machine_line, markdown_table
from akunu_py.drafting import MAKERS, MODEL_DRAFTER, NETWORKS
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.rounds import Stats
from akunu_py.sampling.sampler import Sampler
from benchmarks.records import options_of, record
from benchmarks.seeds.ngram_model import NGramModel, NGramModelDrafter

_ALL: Final = "all"
_STATISTICAL: Final = {"bigram": 2, "trigram": 3}
"""Their orders."""
_NEARLY_GREEDY: Final = 0.1
_PLAIN: Final = "plain"
_EXACT: Final = ", exact"
DRAFTERS: Final = (
    *(name for name in MAKERS if name != "none"),
    *_STATISTICAL,
    *NETWORKS,
)
"""The engine's drafters, a draft model, and statistical models, whose drafts are sampled."""


class Examinee:
    """Answers prompts in several ways, and compares the answers with those without drafts.

    Exact answers are compared with exact ones without drafts, if those are computed in another way.

    Args:
        engine: with the model.
        max_tokens: the maximum length of an answer.
        drafters: their names; each is a way to answer.
        num_draft_tokens: the most draft tokens that a pass verifies.
        exact: whether every drafter also answers exactly, as a second way.

    Attributes:
        costs: what each way took; mlx-lm's is left out.
    """

    def __init__(
        self,
        engine: Engine,
        max_tokens: int,
        drafters: Sequence[str],
        num_draft_tokens: int | None,
        *,
        exact: bool,
    ) -> None:
        self._engine = engine
        self._max_tokens = max_tokens
        self._ways = {_PLAIN: Options(max_tokens, drafter="none")}
        for name in drafters:
            drafted = Options(max_tokens, drafter=name, num_draft_tokens=num_draft_tokens)
            self._ways[name] = drafted
            if exact:
                self._ways[name + _EXACT] = replace(drafted, exact=True)
        self.others = ("mlx-lm", *(way for way in self._ways if way != _PLAIN))
        exact_plain = replace(self._ways[_PLAIN], exact=True)
        if exact and engine.costs.rows_of(exact_plain):
            self._ways[_PLAIN + _EXACT] = exact_plain
        self.costs = {way: Stats() for way in self._ways}

    def examine(self, index: int, prompt: Prompt) -> list[Difference]:
        """Answers a prompt in every way; returns which answers differ from the plain one."""
        answers = {way: self._answer(way, prompt.tokens) for way in self._ways}
        answers["mlx-lm"] = mlx_lm_answer(self._engine, prompt.tokens, self._max_tokens)
        plain = answers.pop(_PLAIN)
        exact_plain = answers.pop(_PLAIN + _EXACT, plain)
        exact = {way: answer for way, answer in answers.items() if way.endswith(_EXACT)}
        usual = {way: answer for way, answer in answers.items() if way not in exact}
        return [
            *find_differences(self._engine, index, prompt, plain, usual),
            *find_differences(self._engine, index, prompt, exact_plain, exact),
        ]

    def _answer(self, way: str, prompt: list[int]) -> list[int]:
        self._engine.reset()
        completion = self._engine.generate(prompt, self._ways[way])
        self.costs[way].include(completion.stats)
        return completion.token_ids

    def cost_table(self) -> str:
        """What the answers took, one row for each way.

        A drafter that learns from earlier requests drafts better in its exact answers: it has
        answered the same prompt before.
        """
        rows = [
            [way, cost.generated_tokens, cost.target_forwards, cost.drafted, cost.accepted,
             f"{cost.decode_s:.1f}"]
            for way, cost in self.costs.items()
        ]  # fmt: skip
        return markdown_table(
            ["answers", "tokens", "passes", "drafted", "accepted", "seconds"],
            rows,
        )  # fmt: skip


def load_engine(arguments: argparse.Namespace, drafters: Sequence[str]) -> Engine:
    """The engine; if `model` is among the drafters, the model drafts for itself."""
    return akunu_py.load(
        akunu_py.ModelOptions(
            arguments.model,
            weights=arguments.weights,
            draft_model=arguments.model if MODEL_DRAFTER in drafters else None,
        )
    )


def add_drafters(engine: Engine, prompts: Sequence[Prompt]) -> None:
    """Lets requests name statistical models, which are counted on the prompts."""
    streams = [prompt.tokens for prompt in prompts]
    for name, order in _STATISTICAL.items():
        model = NGramModel(order, engine.model.vocabulary_size, streams)
        engine.speculation.add_drafter(name, partial(_statistical_drafter, model))


def _statistical_drafter(model: NGramModel, sampler: Sampler) -> NGramModelDrafter:
    return NGramModelDrafter(model, temperature=_NEARLY_GREEDY, seed=sampler.seed)


def read_arguments() -> argparse.Namespace:
    parser = options_of(__doc__, quick="20 prompts instead of 200")
    parser.add_argument("--model", default="ember")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--drafters", nargs="+", choices=(*DRAFTERS, _ALL), default=["auto"])
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--exact", action="store_true", help="also answer exactly")
    parser.add_argument("--name", required=True, help="of the file in results/")
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    drafters = DRAFTERS if _ALL in arguments.drafters else tuple(dict.fromkeys(arguments.drafters))
    engine = load_engine(arguments, drafters)
    machine = describe_machine(engine.backend)
    count = (20 if arguments.quick else 200) // len(KINDS)
    prompts = make_prompts(engine, count, arguments.max_tokens)
    add_drafters(engine, prompts)
    examinee = Examinee(
        engine,
        arguments.max_tokens,
        drafters,
        arguments.num_draft_tokens,
        exact=arguments.exact,
    )
    differences: list[Difference] = []
    for index, prompt in enumerate(prompts):
        for found in examinee.examine(index, prompt):
            differences.append(found)
            print(found, flush=True)

    body = (
        f"{machine_line(machine)}\n\nModel {engine.model.name}, {engine.model.layout} weights, "
        f"up to {arguments.num_draft_tokens} draft tokens per pass, "
        f"{arguments.max_tokens} tokens per answer.\n\n"
        f"{identity_table(prompts, differences, examinee.others)}\n\n{examinee.cost_table()}"
    )
    result = {
        "machine": machine,
        "model": engine.model.name,
        "layout": engine.model.layout,
        "drafters": list(drafters),
        "num_draft_tokens": arguments.num_draft_tokens,
        "max_tokens": arguments.max_tokens,
        "prompts": len(prompts),
        "costs": {way: cost.as_dict() for way, cost in examinee.costs.items()},
        "differences": [asdict(found) for found in differences],
    }
    record(arguments.name, "Greedy identity", body, result)


if __name__ == "__main__":
    main()
