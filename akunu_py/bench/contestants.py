"""Contestants: the ways to answer a request that `bench speedup` times against one another.

A task goes in; an answer comes out, with the seconds its decoding took. Prompts are computed
afresh and not timed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

from akunu_py.bench.forced import ForcedMlxLmSampler, ForcedSampler
from akunu_py.bench.replay import ReplayCase, ReplayResult
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.stats import Stats


@dataclass(frozen=True)
class Task:
    """A request as it is timed.

    Attributes:
        kind: which workload it belongs to.
        case: its ids, and the right answer.
        max_tokens: how long an answer may be; a forced one is the reference up to there.
        forced: whether the reference's tokens are taken as the model's choices.
        sampling: how the model chooses its own.
    """

    kind: str
    case: ReplayCase
    max_tokens: int
    forced: bool
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def reference(self) -> list[int]:
        """What a forced answer says."""
        return list(self.case.reference[: self.max_tokens])


@dataclass(frozen=True)
class Answer:
    """A timed answer.

    Attributes:
        tokens: its ids, end tokens left out.
        seconds_per_token: of decoding, text included.
        stats: akunu's books; None for mlx-lm.
        rounds: what the rounds were, to predict from; empty for mlx-lm.
    """

    tokens: list[int]
    seconds_per_token: float
    stats: Stats | None = None
    rounds: ReplayResult = field(default_factory=ReplayResult)


class Contestant(Protocol):
    """A way to answer."""

    def __str__(self) -> str:
        """Its name in tables."""

    def answer(self, engine: Engine, task: Task) -> Answer | None:
        """Answers a task with the engine's model; None if there was nothing to time."""


class MlxLm:
    """mlx-lm's `stream_generate`: the pipelined loop that all others are compared with."""

    def __str__(self) -> str:
        return "mlx-lm"

    def answer(self, engine: Engine, task: Task) -> Answer | None:
        """Timed from the first token on, which mlx-lm counts to the prompt."""
        tokens: list[int] = []
        begun = now = 0.0
        for response in stream_generate(
            engine.model.original,
            engine.tokenizer.wrapped,
            list(task.case.prompt),
            max_tokens=len(task.reference) if task.forced else task.max_tokens,
            sampler=self._sampler(task),
        ):
            now = perf_counter()
            begun = begun or now
            tokens.append(response.token)
        mx.synchronize()
        timed = len(tokens) - 1
        if tokens and tokens[-1] in engine.tokenizer.end_tokens:
            tokens.pop()
        return Answer(tokens, (now - begun) / timed) if timed > 0 else None

    def _sampler(self, task: Task) -> ForcedMlxLmSampler | None:
        if task.forced:
            return ForcedMlxLmSampler(task.reference)
        if task.sampling.greedy:
            return None
        mx.random.seed(task.sampling.seed or 0)
        sampler: ForcedMlxLmSampler = make_sampler(temp=task.sampling.temperature)
        return sampler


@dataclass(frozen=True)
class Akunu:
    """This engine.

    Attributes:
        drafter: who drafts; `none` decodes plainly.
        num_draft_tokens: the most drafted tokens that a round verifies; None leaves that to the
            planner.
    """

    drafter: str
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        if self.drafter == "none":
            return "plain"
        number = self.num_draft_tokens
        return self.drafter + (" + planner" if number is None else f", num_draft_tokens={number}")

    def answer(self, engine: Engine, task: Task) -> Answer | None:
        prompt = list(task.case.prompt)
        options = Options(
            max_tokens=len(task.reference) if task.forced else task.max_tokens,
            sampling=task.sampling,
            drafter=self.drafter,
            num_draft_tokens=self.num_draft_tokens,
        )
        sampler = ForcedSampler(prompt, task.reference) if task.forced else None
        engine.reset()
        events = list(engine.stream(prompt, options, sampler=sampler))
        tokens = [token for event in events for token in event.tokens]
        if not tokens:
            return None
        result, stats = ReplayResult.of(event.round for event in events), events[-1].stats
        return Answer(tokens, stats.decode_s / result.emitted, stats, result)
