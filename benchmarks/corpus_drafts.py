"""Whether a draft that is sampled from a corpus' counts is accepted more often than the likeliest
token, in text that ember samples at temperature 1.

    python -m benchmarks.corpus_drafts [--requests 10] [--temperatures 0.7 1.0]

The corpus is the memory of a package; ember continues held-out files of it. At each token of the
samples where the memory recalls something, its shares are a distribution q, and the model's
distribution is p. If q is sampled and rejection sampling makes the answer exact, a draft token is
accepted with the probability sum(min(p, q)); if the likeliest token of q is drafted instead, with
p of that token. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import mlx.core as mx
import numpy as np

import akunu_py
from akunu_py.bench.held_out import hold_out
from akunu_py.engine import Engine
from akunu_py.memory.segment import Segment
from akunu_py.memory.tiers import MemoryTier, ProjectTexts
from akunu_py.options import Options, Sampling
from benchmarks.project_memory import folder_of
from benchmarks.records import markdown_table, progress_line, record

PACKAGES: Final = ("rich", "starlette")
PROMPT: Final = 512
ANSWER: Final = 128
SURE: Final = 0.3
"""The share from which on the likeliest token is usually worth a draft."""


def acceptances(
    engine: Engine, memory: Segment, prompt: Sequence[int], temperature: float, seed: int
) -> Iterator[tuple[float, float, float]]:
    """At each token of a sample: the largest share, its token's p, and the overlap of p and q."""
    sampling = Sampling(temperature=temperature, seed=seed)
    options = Options(ANSWER, sampling, drafter="none")
    tokens = [*prompt, *engine.generate(prompt, options).token_ids]
    cache = engine.model.make_cache(len(tokens))
    logits = engine.model.forward(mx.array(tokens), cache).astype(mx.float32) / temperature
    p = np.array(mx.softmax(logits, axis=-1))
    tier = MemoryTier(ProjectTexts([memory]))
    for size in range(len(prompt), len(tokens)):
        recall = tier.recall(tokens[:size])
        if recall is None or recall.token is None:
            continue
        total = sum(recall.shares.values())
        known = [(token, share / total) for token, share in recall.shares.items()]
        overlap = sum(min(p[size - 1, t], q) for t, q in known if t < p.shape[1])
        yield recall.share, float(p[size - 1, recall.token]), float(overlap)


def main() -> None:
    """Samples, compares and writes the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    asked = parser.parse_args()
    engine, rows, show = akunu_py.load("ember"), [], progress_line("packages")
    with TemporaryDirectory() as name:
        for done, module in enumerate(PACKAGES):
            most = asked.requests
            held_out = hold_out(folder_of(module), engine.tokenizer, Path(name), most=most)
            for temperature in asked.temperatures:
                found = np.array(
                    [
                        each
                        for seed, case in enumerate(held_out.cases)
                        for each in acceptances(
                            engine, held_out.memory, case.prompt[-PROMPT:], temperature, seed
                        )
                    ]
                )
                for least in (0.0, SURE):
                    chosen = found[found[:, 0] >= least]
                    rows.append(
                        {
                            "corpus": module,
                            "temperature": temperature,
                            "share of at least": least,
                            "tokens": len(chosen),
                            "likeliest token": round(float(chosen[:, 1].mean()), 3),
                            "sampled": round(float(chosen[:, 2].mean()), 3),
                        }
                    )
            show(done + 1, len(PACKAGES))
    table = markdown_table(list(rows[0]), [list(row.values()) for row in rows])
    record(
        "corpus_drafts",
        "Drafts that are sampled from a corpus",
        "How often a draft token would be accepted in ember's own samples: the likeliest token of "
        f"a recall, or one sampled from its shares with rejection sampling.\n\n{table}",
        {"rows": rows},
    )


if __name__ == "__main__":
    main()
