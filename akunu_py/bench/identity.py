"""Whether drafts change greedy answers: plain decoding, mlx-lm's and drafted answers compared.

Exact answers are compared with exact ones without drafts, if those are computed in another way.
Where a batch of rows is computed by another kernel than one row, two nearly equal logits can change
places. A difference comes with the gap between its two best logits, which distinguishes such a
near-tie from an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import mlx.core as mx
from mlx_lm import stream_generate

from akunu_py.bench.measurement import markdown_table
from akunu_py.bench.prompts import KINDS, Prompt
from akunu_py.engine import Engine
from akunu_py.options import Options
from akunu_py.stats import Stats

MLX_LM: Final = "mlx-lm"
PLAIN: Final = "plain"
_EXACT: Final = ", exact"
_EXACT_PLAIN: Final = PLAIN + _EXACT


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


class Examinee:
    """Answers prompts in several ways, compares the answers, and sums up what each way took.

    Args:
        engine: with the model.
        max_tokens: the maximum length of an answer.
        drafters: their names; each is a way to answer.
        num_draft_tokens: the most draft tokens that a forward verifies; None leaves it to the
            planner.
        exact: whether every drafter also answers exactly, as a second way.

    Attributes:
        others: the ways that are compared with those without drafts.
        costs: what each way took; mlx-lm's is left out.
    """

    def __init__(
        self,
        engine: Engine,
        max_tokens: int,
        drafters: Sequence[str],
        num_draft_tokens: int | None,
        *,
        exact: bool = False,
    ) -> None:
        self._engine = engine
        self._max_tokens = max_tokens
        self._ways = {PLAIN: Options(max_tokens, drafter="none")}
        for name in drafters:
            drafted = Options(max_tokens, drafter=name, num_draft_tokens=num_draft_tokens)
            self._ways[name] = drafted
            if exact:
                self._ways[name + _EXACT] = replace(drafted, exact=True)
        self.others = (MLX_LM, *(way for way in self._ways if way != PLAIN))
        exact_plain = replace(self._ways[PLAIN], exact=True)
        if exact and engine.speculation.rows_of(exact_plain):
            self._ways[_EXACT_PLAIN] = exact_plain
        self.costs = {way: Stats() for way in self._ways}

    def examine(self, index: int, prompt: Prompt) -> list[Difference]:
        """Answers a prompt in every way; returns which answers differ from the plain one."""
        tokens = prompt.tokens[self._max_tokens - self._engine.model.context_length :]
        references = {
            way: self._answer(way, tokens) for way in (PLAIN, _EXACT_PLAIN) if way in self._ways
        }
        found = []
        for other in self.others:
            plain = references[PLAIN]
            if other.endswith(_EXACT):
                plain = references.get(_EXACT_PLAIN, plain)
            position = first_difference(plain, self._answer(other, tokens))
            if position is not None:
                gap = top_2_gap(self._engine, [*tokens, *plain[:position]])
                found.append(Difference(index, prompt.kind, other, position, gap))
        return found

    def _answer(self, way: str, prompt: list[int]) -> list[int]:
        if way == MLX_LM:
            return mlx_lm_answer(self._engine, prompt, self._max_tokens)
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
             cost.rechecked, cost.recheck_forwards, f"{cost.decode_s:.1f}"]
            for way, cost in self.costs.items()
        ]  # fmt: skip
        return markdown_table(
            ["answers", "tokens", "forwards", "drafted", "accepted", "near-ties",
             "forwards for them", "seconds"],
            rows,
        )  # fmt: skip


def identity_table(
    prompts: Sequence[Prompt], differences: Sequence[Difference], others: Sequence[str]
) -> str:
    """How many answers differ from plain decoding's by kind of prompt, one row for each way."""
    kinds = [prompt.kind for prompt in prompts]
    rows = []
    for other in others:
        wrong = [found for found in differences if found.answers == other]
        rows.append(
            [
                other,
                *(sum(found.kind == kind for found in wrong) for kind in KINDS),
                len(wrong),
                f"{max(found.top_2_gap for found in wrong):.1e}" if wrong else "-",
            ]
        )
    heads = [f"{kind} (of {kinds.count(kind)})" for kind in KINDS]
    total = f"all (of {len(kinds)})"
    return markdown_table(["plain != ...", *heads, total, "largest top-2 gap"], rows)
