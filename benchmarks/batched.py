"""Tokens per second of several requests together, beside one after another and mlx-lm's batches.

    python -m benchmarks.batched [--quick] [--models ember random-100m] [--repeats 7]
    python -m benchmarks.batched --name batched_kinds --models qwen3_5 gemma3_text deepseek_v3

The answers are forced: every forward is computed, and then the right text is taken in the place of
its choices. Three contestants give the same answers of the same length with the same weights and
BLAS, in turns: this engine with all requests in `generate_batch`, this engine with one after
another, and mlx-lm's `BatchGenerator`. Prompts are in the caches before the clock starts; it stops
at the last token. `novel` text does not repeat, `edit` copies most of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from time import perf_counter
from typing import Any, Final

from matplotlib.figure import Figure

import akunu_py
from akunu_py.bench.contestants import ForcedSampler
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.bench.replay import ReplayCase
from akunu_py.bench.workloads import encode_samples, make_workloads
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.engine import Engine
from akunu_py.events import Completion
from akunu_py.options import Options
from akunu_py.sequence import Sequence as Requested
from benchmarks.cache_kinds import MODELS
from benchmarks.random_model import random_target
from benchmarks.records import RESULTS, markdown_table, options_of, progress_line, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm.generate import BatchGenerator  # isort: skip
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

KINDS: Final = ("novel", "edit")
SIZES: Final = (1, 2, 4, 8)
CONTESTANTS: Final = ("together", "one after another", "BatchGenerator")
SHAPES: Final[dict[str, dict[str, Any]]] = {
    "random-100m": {
        "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 14,
        "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4,
        "head_dim": 64, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
    "qwen3_5": MODELS["qwen3_5"] | {"model_type": "qwen3_5"},
    "gemma3_text": MODELS["gemma3_text"] | {"model_type": "gemma3_text"},
    "deepseek_v3": {
        "model_type": "deepseek_v3", "hidden_size": 512, "intermediate_size": 1536,
        "moe_intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 8, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 2,
        "kv_lora_rank": 256, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
        "v_head_dim": 64, "max_position_embeddings": 4096, "rope_scaling": None,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1536,
        "moe_intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Networks of 30 to 100 million parameters; the vocabulary is the bundled model's."""

Answer = Callable[[Engine, Sequence[ReplayCase]], float]
"""Gives all forced answers and returns the seconds that it took."""


@dataclass(frozen=True)
class Row:
    """What was measured with one model, kind of text and number of requests.

    Attributes:
        tokens: of each answer.
        seconds: of each contestant, one entry a turn.
        rows_per_forward: of the batched forwards of `together`.
    """

    model: str
    kind: str
    requests: int
    tokens: int
    seconds: dict[str, list[float]]
    rows_per_forward: float

    def speed(self, contestant: str) -> Spread:
        total = self.tokens * self.requests
        return Spread.of([total / one for one in self.seconds[contestant]])

    def over(self, contestant: str) -> Spread:
        """How many times as fast `together` is, by turns."""
        pairs = zip(self.seconds["together"], self.seconds[contestant], strict=True)
        return Spread.of([other / own for own, other in pairs])


def together(engine: Engine, cases: Sequence[ReplayCase]) -> float:
    prompts, samplers = _prepare(engine, cases)
    begun = perf_counter()
    asked = Options(len(cases[0].reference))
    pairs = zip(prompts, samplers, strict=True)
    sequences = [Requested(prompt, asked, sampler=sampler) for prompt, sampler in pairs]
    found = engine.generate_batch(sequences, parallel=len(prompts))
    seconds = perf_counter() - begun
    _check([completion.token_ids for completion in found], cases)
    return seconds


def one_after_another(engine: Engine, cases: Sequence[ReplayCase]) -> float:
    prompts, samplers = _prepare(engine, cases)
    options, found = Options(len(cases[0].reference)), list[Completion]()
    begun = perf_counter()
    for prompt, sampler in zip(prompts, samplers, strict=True):
        found.append(Completion(engine.model.name))
        for event in engine.stream(Requested(prompt, options, sampler=sampler)):
            found[-1].add(event)
    seconds = perf_counter() - begun
    _check([completion.token_ids for completion in found], cases)
    return seconds


def batch_generator(engine: Engine, cases: Sequence[ReplayCase]) -> float:
    """mlx-lm's, on its own form of the network. One sampler serves all its rows at once."""
    network, caches = engine.model.original, []
    for case in cases:
        caches.append(make_prompt_cache(network))
        network(mx.array([case.prompt[:-1]]), cache=caches[-1])
        mx.eval([layer.state for layer in caches[-1]])
    columns = iter(zip(*(case.reference for case in cases), strict=True))

    def forced(logprobs: mx.array) -> mx.array:
        chosen = mx.argmax(logprobs, axis=-1)
        wanted = next(columns, (0,) * len(cases))
        return mx.maximum(chosen * 0, mx.array(wanted, dtype=chosen.dtype))

    found: dict[int, list[int]] = {}
    begun = perf_counter()
    generator = BatchGenerator(network, sampler=forced, max_tokens=len(cases[0].reference))
    uids = generator.insert([[case.prompt[-1]] for case in cases], caches=caches)
    while responses := generator.next_generated():
        for response in responses:
            found.setdefault(response.uid, []).append(response.token)
    for tokens in found.values():
        engine.tokenizer.decode(tokens)  # this engine makes text of its tokens, too
    seconds = perf_counter() - begun
    generator.close()
    _check([found[uid] for uid in uids], cases)
    return seconds


ANSWERS: Final[dict[str, Answer]] = dict(
    zip(CONTESTANTS, (together, one_after_another, batch_generator), strict=True)
)


def measure(
    engine: Engine, kind: str, cases: Sequence[ReplayCase], repeats: int, tick: Callable[[], None]
) -> Row:
    """Times the contestants in turns, after a short warm-up."""
    for answer in ANSWERS.values():
        answer(engine, [_cut(case, 4) for case in cases])
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    forwards, rows = engine.batch.forwards, engine.batch.rows
    shuffle = Random(0).shuffle
    for _ in range(repeats):
        order = list(CONTESTANTS)
        shuffle(order)
        for name in order:
            seconds[name].append(ANSWERS[name](engine, cases))
        tick()
    forwards, rows = engine.batch.forwards - forwards, engine.batch.rows - rows
    per_forward = rows / forwards if forwards else 0.0
    return Row(engine.model.name, kind, len(cases), len(cases[0].reference), seconds, per_forward)


def cases_of(engine: Engine, kind: str, tokens: int) -> list[ReplayCase]:
    """As many requests as the largest batch has, with answers of the same length."""
    wanted, count = max(SIZES), 8
    while True:
        found = encode_samples(engine.tokenizer, make_workloads(count))[kind]
        long = [_cut(case, tokens) for case in found if len(case.reference) >= tokens]
        if len(long) >= wanted:
            return long[:wanted]
        count *= 2


def draw(rows: Sequence[Row], name: str) -> None:
    """Draws tokens per second over the number of requests, into `results/NAME.svg`."""
    panels = list(dict.fromkeys((row.model, row.kind) for row in rows))
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        own = [row for row in rows if (row.model, row.kind) == panel]
        places = range(len(own))
        for contestant in CONTESTANTS:
            spreads = [row.speed(contestant) for row in own]
            below = [one.median - one.low for one in spreads]
            above = [one.high - one.median for one in spreads]
            medians = [one.median for one in spreads]
            axes.errorbar(places, medians, yerr=(below, above), marker=".", label=contestant)
        axes.set_xticks(places, [str(row.requests) for row in own])
        axes.set_ylim(bottom=0)
        axes.set(title=f"{panel[0]}, {panel[1]}", xlabel="requests", ylabel="tokens/s in all")
        axes.legend(fontsize="small")
    figure.savefig(RESULTS / f"{name}.svg")


def main() -> None:
    parser = options_of(__doc__, name="batched", quick="ember, 3 turns; nothing is recorded")
    parser.add_argument("--models", nargs="+", choices=["ember", *SHAPES])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    names = options.models or (["ember"] if options.quick else ["ember", "random-100m"])
    repeats = 3 if options.quick else options.repeats
    tokens = 48 if options.quick else options.tokens

    bundled = akunu_py.load("ember", calibrate=lambda model, _: measure_cost_curve(model))
    machine, rows = describe_machine(bundled.backend), list[Row]()
    show, total = progress_line("turns"), len(names) * len(KINDS) * len(options.sizes) * repeats
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        show(done, total)

    for name in names:
        engine = bundled
        if name != "ember":
            fuses = bundled.backend.is_cpu and name == "random-100m"
            model = random_target(name, SHAPES[name], bundled.model, fuses=fuses)
            engine = Engine(
                model, bundled.backend, calibrate=lambda model, _: measure_cost_curve(model)
            )
        for kind in KINDS:
            cases = cases_of(engine, kind, tokens)
            for size in options.sizes:
                rows.append(measure(engine, kind, cases[:size], repeats, tick))
    table = markdown_table(
        ["model", "text", "requests", *(f"{name}, tokens/s" for name in CONTESTANTS),
         "over one after another", "over BatchGenerator", "rows a forward"],
        [
            [row.model, row.kind, row.requests, *(f"{row.speed(name):.0f}" for name in CONTESTANTS),
             f"{row.over('one after another'):.2f}", f"{row.over('BatchGenerator'):.2f}",
             f"{row.rows_per_forward:.1f}"]
            for row in rows
        ],
    )  # fmt: skip
    if options.quick:
        print(table)
        return
    draw(rows, options.name)
    record(
        options.name,
        "Several requests together",
        f"{machine_line(machine)}.\n\nForced answers of {tokens} tokens; {repeats} turns. Medians "
        "with their quartiles; ratios are of the same turns. Drawn in"
        f" [{options.name}.svg]({options.name}.svg).\n\n{table}",
        {"machine": machine, "rows": [asdict(row) for row in rows]},
    )


def _prepare(
    engine: Engine, cases: Sequence[ReplayCase]
) -> tuple[list[list[int]], list[ForcedSampler]]:
    """The prompts, which the caches then hold, and what forces their answers."""
    prompts = [list(case.prompt) for case in cases]
    engine.reset()
    engine.generate_batch(prompts, Options(1, drafter="none"), parallel=len(prompts))
    return prompts, [ForcedSampler(case.prompt, case.reference) for case in cases]


def _cut(case: ReplayCase, tokens: int) -> ReplayCase:
    return ReplayCase(case.prompt, case.reference[:tokens])


def _check(answers: Sequence[Sequence[int]], cases: Sequence[ReplayCase]) -> None:
    assert [list(answer) for answer in answers] == [list(case.reference) for case in cases]


if __name__ == "__main__":
    main()
