"""Contestants: the ways to answer a request that `bench speedup` times against one another.

A task goes in; a completion comes out, with the seconds that decoding took. Prompts are computed
afresh and not timed. A forced completion shows what an engine does with the answers of a perfect
model: every forward pass is computed as usual, and then the token it chose is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import mlx.core as mx
from mlx_lm import stream_generate
from mlx_lm.sample_utils import make_sampler

from akunu_py.bench.replay import Policy, ReplayCase, ReplayResult
from akunu_py.engine import Engine
from akunu_py.options import DEFAULT_KV_GROUP_SIZE, Options, Sampling
from akunu_py.rounds import Stats
from akunu_py.sampling.sampler import Sampler
from akunu_py.sequence import Sequence as Requested


@dataclass(frozen=True)
class Task:
    """A request of a workload. If it is `forced`, the tokens of its reference replace the model's
    choices, up to `max_tokens`.
    """

    kind: str
    case: ReplayCase
    max_tokens: int
    forced: bool
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def reference(self) -> list[int]:
        return list(self.case.reference[: self.max_tokens])

    @property
    def limit(self) -> int:
        return len(self.reference) if self.forced else self.max_tokens


@dataclass(frozen=True)
class TimedCompletion:
    """The answer to a task, without end tokens, and the seconds per token, including the conversion
    to text. mlx-lm's has no `stats` and no `rounds`."""

    tokens: list[int]
    seconds_per_token: float
    stats: Stats | None = None
    rounds: ReplayResult = field(default_factory=ReplayResult)


class MlxLm:
    """mlx-lm's `stream_generate`: the pipelined loop that the others are compared with."""

    def __str__(self) -> str:
        return "mlx-lm"

    def complete(self, engine: Engine, task: Task) -> TimedCompletion | None:
        """None for a single token: mlx-lm counts the first token's time as part of the prompt's."""
        tokens: list[int] = []
        begun = now = 0.0
        kv = engine.model.kv_quantization
        for response in stream_generate(
            engine.model.original,
            engine.tokenizer.wrapped,
            list(task.case.prompt),
            max_tokens=task.limit,
            sampler=_sampler_of(task),
            kv_bits=None if kv is None else kv.bits,
            kv_group_size=DEFAULT_KV_GROUP_SIZE if kv is None else kv.group_size,
            quantized_kv_start=0 if kv is None else kv.start,
            max_kv_size=engine.model.max_kv_size,
        ):
            now = perf_counter()
            begun = begun or now
            tokens.append(response.token)
        mx.synchronize()
        timed = len(tokens) - 1
        if tokens and tokens[-1] in engine.tokenizer.end_tokens:
            tokens.pop()
        return TimedCompletion(tokens, (now - begun) / timed) if timed > 0 else None


def _sampler_of(task: Task) -> Callable[[mx.array], mx.array]:
    mx.random.seed(task.sampling.seed or 0)
    sampler = mlx_lm_sampler(task.sampling)
    if not task.forced:
        return sampler
    left = iter(task.reference)
    return lambda logprobs: _in_place_of(sampler(logprobs), [next(left, 0)])


def mlx_lm_sampler(sampling: Sampling) -> Callable[[mx.array], mx.array]:
    """mlx-lm's sampler with this temperature and these filters; XTC and seed are left out."""
    sampler: Callable[[mx.array], mx.array] = make_sampler(
        sampling.temperature,
        sampling.top_p if sampling.top_p < 1 else 0.0,
        sampling.min_p,
        top_k=sampling.top_k,
    )
    return sampler


class Akunu(Policy):
    """This engine with a drafter and a number of draft tokens; `none` decodes without drafts."""

    def __str__(self) -> str:
        return "plain" if self.drafter == "none" else super().__str__()

    def complete(self, engine: Engine, task: Task) -> TimedCompletion | None:
        prompt = list(task.case.prompt)
        options = Options(
            max_tokens=task.limit,
            drafter=self.drafter,
            num_draft_tokens=self.num_draft_tokens,
        ).sampled_as(task.sampling)
        sampler = ForcedSampler(prompt, task.reference, task.sampling) if task.forced else None
        engine.reset()
        events = list(engine.stream(Requested(prompt, options, sampler=sampler)))
        tokens = [token for event in events for token in event.tokens]
        if not tokens:
            return None
        result, stats = ReplayResult.of(event.round for event in events), events[-1].stats
        return TimedCompletion(tokens, stats.decode_s / result.emitted, stats, result)


Contestant = MlxLm | Akunu


class ForcedSampler(Sampler):
    """Chooses the tokens of a reference by their position, whatever the logits are."""

    def __init__(
        self,
        prompt: Sequence[int],
        reference: Sequence[int],
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
    ) -> None:
        super().__init__(sampling, prompt)
        self._tokens = [*prompt, *reference]

    def choose(self, logits: mx.array, position: int) -> mx.array:
        wanted = self._tokens[position : position + logits.shape[0]]
        return _in_place_of(super().choose(logits, position), wanted)


def _in_place_of(chosen: mx.array, wanted: Sequence[int]) -> mx.array:
    """The wanted tokens; computed from the chosen ones, so that these are computed."""
    padded = [*wanted, *[0] * (chosen.size - len(wanted))]
    return mx.maximum(chosen * 0, mx.array(padded, dtype=chosen.dtype))
