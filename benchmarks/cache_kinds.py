"""What caches of other kinds cost: steps, rejected drafts and memory, beside mlx-lm's own.

    python -m benchmarks.cache_kinds [--quick]

Random models: a hybrid that repeats its recurrence after a rejection (Qwen3.5), one that computes
tokens again (Jamba), and one with sliding windows (Gemma 3). Their answers are forced, because
random weights have nothing to say. Each is compared with mlx-lm's loop and with no drafts, in
turns; memory is that of caches that were fed 32,768 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any, Final

import akunu_py
from akunu_py.bench.contestants import Akunu, MlxLm, Task
from akunu_py.bench.measurement import Spread, describe_machine, machine_line
from akunu_py.bench.speedup import contest, make_tasks
from akunu_py.bench.workloads import encode_samples, make_workloads
from akunu_py.calibration.measure import measure_cost_curve
from akunu_py.decoding.target import ModelTarget
from akunu_py.drafting.base import NO_DRAFT, Draft
from akunu_py.engine import Engine
from akunu_py.model.target_model import TargetModel
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.sampling.sampler import Sampler
from benchmarks.random_model import random_target
from benchmarks.records import markdown_table, options_of, progress_line, record

import mlx.core as mx  # isort: skip  (after akunu_py, which loads the BLAS)
from mlx_lm.models.cache import make_prompt_cache  # isort: skip

CONTEXT: Final = 32_768
MODELS: Final[dict[str, dict[str, Any]]] = {
    "qwen3_5": {
        "text_config": {
            "model_type": "qwen3_5_text", "hidden_size": 512, "intermediate_size": 1536,
            "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 64, "linear_num_value_heads": 8, "linear_num_key_heads": 4,
            "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 65536,
            "tie_word_embeddings": False,
        },
    },
    "jamba": {
        "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "attn_layer_offset": 3,
        "attn_layer_period": 4, "expert_layer_offset": 1, "expert_layer_period": 2,
        "num_experts": 1, "num_experts_per_tok": 1, "mamba_d_conv": 4, "mamba_d_state": 16,
        "mamba_expand": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 65536,
    },
    "gemma3_text": {
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 65536,
    },
}  # fmt: skip
"""Configurations of architectures; the vocabulary is the bundled model's."""
PROMPTS: Final = {"qwen3_5": 96, "jamba": 96, "gemma3_text": 600}
"""Tokens of a prompt: more than a window, and few where MLX's CPU backend computes a recurrence one
token after another."""


def with_prompt_of(task: Task, tokens: int) -> Task:
    """A task with the end of its prompt, repeated if that is too short."""
    prompt = list(task.case.prompt)
    prompt = (prompt * -(-tokens // len(prompt)))[-tokens:]
    return replace(task, case=replace(task.case, prompt=prompt))


def rejection_costs(model: TargetModel, curve: CostCurve, repeats: int) -> Spread:
    """Measured over predicted seconds of a round whose draft falls, and the step after it.

    Four tokens are drafted and two accepted, as with a real answer.
    """
    ratios = []
    context = 256
    cache = model.make_cache(context + 64)
    model.prefill(list(range(context)), cache)
    cache.keep()
    target = ModelTarget(model, cache, Sampler(Sampling()), 8)
    plain = [target.read(target.submit(1, NO_DRAFT)).tokens[0]]
    for _ in range(4):
        plain.append(target.read(target.submit(plain[-1], NO_DRAFT)).tokens[0])
    wrong = tuple((token + 1) % model.vocabulary_size for token in plain[2:4])
    for turn in range(repeats + 1):
        target.rollback(context)
        begun = perf_counter()
        outcome = target.read(target.submit(1, Draft((*plain[:2], *wrong))))
        target.rollback(context + 1 + outcome.accepted)
        again = target.replayed
        target.read(target.submit(outcome.tokens[-1], NO_DRAFT))
        seconds = perf_counter() - begun
        expected = curve.verify_s(5, context) + curve.verify_s(1 + again, context)
        if turn:
            ratios.append(seconds / expected)
    return Spread.of(ratios)


def held_bytes(make_layers: Callable[[], list[Any]], kv_heads: int, head_dim: int) -> int:
    """Bytes that the caches with keys and values hold after `CONTEXT` tokens and a few steps."""
    layers = [layer for layer in make_layers() if hasattr(layer, "update_and_fetch")]
    for rows in [512] * (CONTEXT // 512 - 1) + [504] + [1] * 8:
        keys = mx.zeros((1, kv_heads, rows, head_dim))
        for layer in layers:
            mx.eval(layer.update_and_fetch(keys, keys))
    return sum(int(layer.nbytes) for layer in layers)


def main() -> None:
    parser = options_of(__doc__, quick="1 request of each workload, not 4")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()

    bundled = akunu_py.load()
    speeds, costs = [], []
    for name in options.models:
        model = random_target(name, MODELS[name] | {"model_type": name}, bundled.model)
        curve = measure_cost_curve(model, budget_s=8.0)
        engine = Engine(model, bundled.backend, calibrate=lambda *_, curve=curve: curve)
        sets = encode_samples(bundled.tokenizer, make_workloads(1 if options.quick else 4))
        tasks = [with_prompt_of(task, PROMPTS[name]) for task in make_tasks(sets, 96, ("forced",))]
        rows, _ = contest(
            engine,
            tasks,
            [MlxLm(), Akunu("none"), Akunu("auto")],
            rounds=1 if options.quick else 2,
            curve=curve,
            progress=progress_line(f"answers of {name}"),
        )
        for row in rows:
            if row.contestant != "mlx-lm":
                speeds.append((name, row.kind, row.contestant, row.speedup, row.over_plain))
        settings = {**MODELS[name], **MODELS[name].get("text_config", {})}
        heads = settings["num_key_value_heads"]
        dim = settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"]
        ours = held_bytes(lambda model=model: model.make_cache(CONTEXT).layers, heads, dim)  # type: ignore[misc]
        theirs = held_bytes(lambda model=model: make_prompt_cache(model.network), heads, dim)  # type: ignore[misc]
        ratio = rejection_costs(model, curve, 40)
        costs.append((name, model.parameter_count, ratio, ours, theirs))
    heads_of_speeds = ("model", "answers", "decoding", "over mlx-lm", "over no drafts")
    heads_of_costs = ("model", "parameters", "rejection, measured over predicted",
                      "cache at 32,768 tokens", "mlx-lm's", "ratio")  # fmt: skip
    body = "\n\n".join(
        (
            machine_line(describe_machine(bundled.backend)),
            "Random weights, float32; forced answers of 96 tokens, all in turns; medians and "
            "quartiles of pairs.",
            markdown_table(
                heads_of_speeds,
                [
                    (name, kind, decoding, f"{over_theirs:.2f}", f"{over_plain:.2f}")
                    for name, kind, decoding, over_theirs, over_plain in speeds
                ],
            ),
            "A rejection is a round of which two of four drafted tokens are accepted, and the step "
            "after it, which may have to compute tokens again; the prediction is the cost curve's.",
            markdown_table(
                heads_of_costs,
                [
                    (name, f"{count / 1e6:.0f}M", f"{ratio:.2f}", f"{ours / 1e6:.1f} MB",
                     f"{theirs / 1e6:.1f} MB", f"{ours / theirs:.2f}")
                    for name, count, ratio, ours, theirs in costs
                ],
            ),
        )
    )  # fmt: skip
    found = {
        "speeds": [
            {"model": name, "kind": kind, "decoding": decoding, "over_mlx_lm": a.median,
             "over_plain": b.median}
            for name, kind, decoding, a, b in speeds
        ],
        "costs": [
            {"model": name, "rejection": ratio.median, "bytes": ours, "mlx_lm_bytes": theirs}
            for name, _, ratio, ours, theirs in costs
        ],
    }  # fmt: skip
    record("cache_kinds", "Caches of other kinds", body, found)


if __name__ == "__main__":
    main()
