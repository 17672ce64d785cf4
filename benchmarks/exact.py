"""What `--exact` costs in 16 bits: answers that drafts change, and tokens per forward.

    python -m benchmarks.exact
    python -m benchmarks.exact --model mlx-community/Qwen2.5-Coder-1.5B-Instruct-bf16

The same prompts are answered without drafts and with them: as usual, and in blocks of 2 to 8 rows.
On a CPU, MLX computes all rows of a 16-bit matrix alike, so the bundled model is made to round as
GPUs do (`tests/rounding.py`). What a block costs on a Mac is predicted from published
costs of forward passes; nobody has measured it there.
"""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import mlx.core as mx

import akunu_py
from akunu_py.bench.device_report import KINDS, Prompt, make_prompts
from akunu_py.bench.measurement import describe_machine, machine_line
from akunu_py.calibration.cost_store import published_curves
from akunu_py.engine import Engine
from akunu_py.model.target_model import TargetModel
from akunu_py.options import BUNDLED_MODEL, Options, Sampling
from akunu_py.stats import Stats
from benchmarks.records import markdown_table, options_of, progress_line, record
from tests.rounding import ANY_SIZE, attention_of, round_as

ROWS: Final = (2, 3, 4, 8)
SAMPLINGS: Final = {
    "greedy": Sampling(),
    "sampled": Sampling(temperature=1.0, top_p=0.95, seed=3),
}
_DRAFT: Final = 8
_LIMIT: Final = 400
"""Prompt tokens: enough for every kind of prompt."""


def load_engine(name: str) -> Engine:
    """A model as it is loaded; the bundled one in bfloat16, rounding as on a GPU."""
    engine = akunu_py.load(
        akunu_py.ModelOptions(name, weights="dense" if name == BUNDLED_MODEL else "quantized")
    )
    loaded = engine.model
    if name != BUNDLED_MODEL:
        return engine
    loaded.original.set_dtype(mx.bfloat16)
    model = TargetModel(
        loaded.original, loaded.tokenizer, loaded.config, name=name, layout=loaded.layout
    )
    round_as(ANY_SIZE, model.network)
    return Engine(model, engine.backend)


def ways_of(options: Options) -> dict[str, tuple[Options, Options, int | None]]:
    """Drafted options, those of the text they should leave alone, and the rows of a block."""
    exact = replace(options, exact=True)
    plain, exact_plain = (replace(one, drafter="none") for one in (options, exact))
    ways: dict[str, tuple[Options, Options, int | None]] = {"drafts": (options, plain, None)}
    return ways | {f"blocks of {rows}": (exact, exact_plain, rows) for rows in ROWS}


def compare(
    engine: Engine, prompts: list[Prompt], drafted: Options, plain: Options, rows: int | None
) -> dict[str, Any]:
    """How many answers differ, and what the drafted ones took."""
    speculation, stats, different = engine.speculation, Stats(), 0
    speculation.block_rows = rows or speculation.block_rows
    for prompt in prompts:
        tokens = []
        for options in (plain, drafted):
            engine.reset()
            found = engine.generate(prompt.tokens[-_LIMIT:], options)
            tokens.append(found.token_ids)
        different += tokens[0] != tokens[1]
        stats.include(found.stats)
    return {
        "different": different,
        "tokens": stats.generated_tokens,
        "forwards": stats.target_forwards,
        "tokens_per_forward": stats.generated_tokens / stats.target_forwards,
    }


def predicted(found: dict[str, Any], rows: int) -> list[list[str]]:
    """For each published curve: the speed in blocks over single-token steps, with drafts and
    without any."""
    lines = []
    for name, named in published_curves().items():
        cost = named.curve.verify_s(rows, 0) / named.curve.decode_s(0)
        lines.append([name, f"{found['tokens_per_forward'] / cost:.2f}", f"{1 / cost:.2f}"])
    return lines


def main() -> None:
    parser = options_of(__doc__, name="exact")
    parser.add_argument("--model", default=BUNDLED_MODEL)
    parser.add_argument("--limit", type=int, default=40, help="prompts, the four kinds in turns")
    parser.add_argument("--max-tokens", type=int, default=100)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        engine = load_engine(arguments.model)
        if arguments.model == BUNDLED_MODEL:
            stack.enter_context(attention_of(ANY_SIZE))
        prompts = make_prompts(engine, arguments.limit // len(KINDS), arguments.max_tokens)
        progress, results = progress_line("comparisons"), {}
        ways = {
            (sampling, way): pair
            for sampling, how in SAMPLINGS.items()
            for way, pair in ways_of(
                Options(arguments.max_tokens, how, drafter="ngram", num_draft_tokens=_DRAFT)
            ).items()
        }
        for done, (key, pair) in enumerate(ways.items(), start=1):
            results[key] = compare(engine, prompts, *pair)
            progress(done, len(ways))
    machine = describe_machine(engine.backend)
    rows = [
        [sampling, way, found["different"], found["tokens"], found["forwards"],
         f"{found['tokens_per_forward']:.2f}"]
        for (sampling, way), found in results.items()
    ]  # fmt: skip
    forecast = [
        [size, *line]
        for size in ROWS
        for line in predicted(results["greedy", f"blocks of {size}"], size)
    ]
    body = "\n\n".join(
        (
            f"{machine_line(machine)}\n\nModel {engine.model.name} in 16 bits, {len(prompts)} "
            f"prompts, answers of up to {arguments.max_tokens} tokens, up to {_DRAFT} draft "
            "tokens.",
            markdown_table(
                ["answers", "exact by", "changed by drafts", "tokens", "forwards",
                 "tokens per forward"],
                rows,
            ),
            "Speed in blocks over single-token steps, predicted from published costs of forwards:",
            markdown_table(["rows", "costs", "with these drafts", "without drafts"], forecast),
        )
    )  # fmt: skip
    result = {
        "machine": machine,
        "model": engine.model.name,
        "prompts": len(prompts),
        "max_tokens": arguments.max_tokens,
        "ways": {f"{sampling}, {way}": found for (sampling, way), found in results.items()},
    }
    record(arguments.name, "Exact answers in 16 bits", body, result)


if __name__ == "__main__":
    main()
