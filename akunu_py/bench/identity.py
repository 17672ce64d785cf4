"""Whether drafts change greedy answers: those with drafts and mlx-lm's, compared with plain ones.

Where a batch of rows is computed by another kernel than one row, two nearly equal logits can change
places. A difference comes with the gap between its two best logits, which distinguishes such a
near-tie from an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, cast

import mlx.core as mx
from mlx_lm import stream_generate

from akunu_py.bench.measurement import markdown_table
from akunu_py.bench.samples import encode_samples
from akunu_py.bench.workloads import make_workloads
from akunu_py.engine import Engine

KINDS: Final = ("edit", "fill-in", "novel", "random")
"""Kinds of prompts: three of `workloads.py`, and drawn tokens."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, and its kind."""

    kind: str
    tokens: list[int]


def make_prompts(engine: Engine, count: int, max_tokens: int) -> list[Prompt]:
    """`count` prompts of each kind, the same on every run of one Python version.

    Args:
        engine: whose tokenizer encodes them, and whose context they fit with an answer.
        count: how many of each kind.
        max_tokens: the length of an answer.
    """
    room, vocabulary = engine.context_limit - max_tokens, range(engine.model.vocabulary_size)
    sets = encode_samples(engine.tokenizer, make_workloads(count, KINDS[:-1]))
    prompts = [
        Prompt(kind, list(case.prompt)[-room:]) for kind, cases in sets.items() for case in cases
    ]
    draw = Random(0)
    drawn = (draw.choices(vocabulary, k=draw.randrange(1, 120)) for _ in range(count))
    return [*prompts, *(Prompt(KINDS[-1], tokens[-room:]) for tokens in drawn)]


@dataclass(frozen=True)
class Difference:
    """The first position at which an answer differs from the one without drafts."""

    prompt: int
    kind: str
    answers: str
    position: int
    top_2_gap: float


def mlx_lm_answer(engine: Engine, prompt: list[int], max_tokens: int) -> list[int]:
    """What mlx-lm's own loop generates greedily, without end tokens."""
    responses = stream_generate(
        engine.model.original, engine.tokenizer.wrapped, prompt, max_tokens=max_tokens
    )
    tokens = [response.token for response in responses]
    return tokens[:-1] if tokens[-1] in engine.tokenizer.end_tokens else tokens


def top_2_gap(engine: Engine, tokens: list[int]) -> float:
    """The gap between the two best logits after `tokens`, by a single-token forward."""
    cache = engine.model.make_cache(len(tokens))
    engine.model.prefill(tokens[:-1], cache)
    logits = engine.model.forward(mx.array(tokens[-1:]), cache)[0].astype(mx.float32)
    best = mx.sort(logits)[-2:]
    return cast(float, (best[1] - best[0]).item())


def first_difference(left: list[int], right: list[int]) -> int | None:
    """The first position at which two answers differ; None if they are the same."""
    for position, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return position
    return None if len(left) == len(right) else min(len(left), len(right))


def find_differences(
    engine: Engine, index: int, prompt: Prompt, plain: list[int], others: Mapping[str, list[int]]
) -> list[Difference]:
    """Where other answers to a prompt, by their names, begin to differ from the plain one."""
    found = []
    for name, answer in others.items():
        position = first_difference(plain, answer)
        if position is not None:
            gap = top_2_gap(engine, [*prompt.tokens, *plain[:position]])
            found.append(Difference(index, prompt.kind, name, position, gap))
    return found


def identity_table(
    prompts: Sequence[Prompt], differences: Sequence[Difference], others: Sequence[str]
) -> str:
    """How many answers differ from plain decoding's by kind of prompt, one row for each way."""
    all_kinds = [prompt.kind for prompt in prompts]
    kinds = list(dict.fromkeys(all_kinds))
    rows = []
    for other in others:
        wrong = [found for found in differences if found.answers == other]
        largest = f"{max(found.top_2_gap for found in wrong):.1e}" if wrong else "-"
        by_kind = (sum(found.kind == kind for found in wrong) for kind in kinds)
        rows.append([other, *by_kind, len(wrong), largest])
    heads = [f"{kind} (of {all_kinds.count(kind)})" for kind in kinds]
    total = f"all (of {len(all_kinds)})"
    return markdown_table(["plain != ...", *heads, total, "largest top-2 gap"], rows)
