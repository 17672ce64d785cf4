"""Contestants: the ways to answer a request that `bench speedup` times against one another.

A task goes in; an answer comes out, with the seconds its decoding took. Prompts are computed
afresh and not timed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

from akunu_py.bench.forced import ForcedMlxLmSampler, ForcedSampler
from akunu_py.bench.replay import ReplayCase, ReplayResult, ReplayRound, RoundShape
from akunu_py.cache.kv_cache import PreallocatedKVCache
from akunu_py.decoding.draft_session import DraftSession
from akunu_py.decoding.draft_trimmer import DraftTrimmer
from akunu_py.decoding.loops import Limits, decode_autoregressive, decode_speculative
from akunu_py.engine import Engine
from akunu_py.options import Options, Sampling
from akunu_py.stats import Finish, Stats
from akunu_py.text.fim import fills_gap
from akunu_py.text.stream import TextStream


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
        drafts: the most drafts a round verifies; None leaves that to the planner.
    """

    drafter: str
    drafts: int | None = None

    def __str__(self) -> str:
        if self.drafter == "none":
            return "plain"
        length = " + planner" if self.drafts is None else f", num_draft_tokens={self.drafts}"
        return f"{self.drafter}{length}"

    def answer(self, engine: Engine, task: Task) -> Answer | None:
        options = Options(
            max_tokens=len(task.reference) if task.forced else task.max_tokens,
            sampling=task.sampling,
            drafter=self.drafter,
            num_draft_tokens=self.drafts,
        )
        answer = _forced if task.forced else _own
        return answer(engine, task, options)


def _own(engine: Engine, task: Task, options: Options) -> Answer | None:
    """What a user of the engine gets."""
    engine.reset()
    tokens: list[int] = []
    rounds: list[tuple[int, int]] = []
    drafted = 0
    for event in engine.stream(task.case.prompt, options):
        tokens += event.tokens
        # An end token is no part of the text, but a token that was decoded.
        emitted = len(event.tokens) + (event.finish_reason is Finish.EOS)
        rounds.append((event.stats.drafted - drafted, emitted))
        drafted = event.stats.drafted
    return _answer(task, tokens, event.stats, rounds)


def _forced(engine: Engine, task: Task, options: Options) -> Answer | None:
    """Decoding itself, with the reference in place of the model's choices."""
    prompt, reference = list(task.case.prompt), task.reference
    model, speculation, stats = engine.model, engine.speculation, Stats()
    sampler = ForcedSampler(prompt, reference)
    gap = fills_gap(engine.tokenizer, prompt)
    drafter = speculation.drafter(options.drafter, sampler, fills_gap=gap)
    planner = speculation.planner(options, fills_gap=gap)
    cache = model.make_cache(len(prompt) + len(reference) + 1)
    text = TextStream(engine.tokenizer.detokenizer(prompt), ())
    limits = Limits(len(reference), frozenset())
    model.prefill(prompt[:-1], cache)
    begun = perf_counter()
    if options.drafts and isinstance(cache, PreallocatedKVCache):
        trimmer = DraftTrimmer(task.case.end_tokens)
        draft_session = DraftSession(drafter, planner, speculation.buffer, trimmer)
        draft_session.begin(prompt)
        stats.draft_s = perf_counter() - begun
        decoding = decode_speculative(
            model, cache, sampler, prompt[-1], limits, draft_session=draft_session
        )
    else:
        decoding = decode_autoregressive(model, cache, sampler, prompt[-1], limits)
    rounds: list[tuple[int, int]] = []
    for done in decoding:
        for position, token in enumerate(done.tokens):
            text.feed(token, drafted=position < done.accepted)
        stats.decode_s = perf_counter() - begun
        stats.add(done)
        rounds.append((done.drafted, len(done.tokens)))
    return _answer(task, reference, stats, rounds)


def _answer(
    task: Task, tokens: list[int], stats: Stats, rounds: Iterable[tuple[int, int]]
) -> Answer | None:
    if not tokens:
        return None
    result = ReplayResult.of(_shaped(len(task.case.prompt), rounds))
    return Answer(tokens, stats.decode_s / result.emitted, stats, result)


def _shaped(prompt: int, rounds: Iterable[tuple[int, int]]) -> Iterator[ReplayRound]:
    """Rounds as a replay has them, from the drafts and the tokens of each.

    One without drafts that follows another ran ahead.
    """
    context, before = prompt - 1, -1
    for drafted, emitted in rounds:
        shape = RoundShape(drafted, context, pipelined=drafted == before == 0)
        yield ReplayRound(shape, max(0, emitted - 1), emitted)
        context += emitted
        before = drafted
