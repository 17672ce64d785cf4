"""`bench speedup`: contestants answer the same requests in turns, and their times are compared.

All run in one process, on the same weights and BLAS, in an order drawn anew for every request, so
that a busy moment or a warm cache cannot favour one of them. Each speedup is that of a pair: an
answer, and the baseline's answer to the same request in the same turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from akunu_py.bench.baselines import add_baselines
from akunu_py.bench.contestants import Contestant, Task, TimedCompletion
from akunu_py.bench.identity import first_difference
from akunu_py.bench.measurement import Progress, Spread
from akunu_py.bench.replay import ReplayCase, ReplayResult, repeated_share
from akunu_py.engine import Engine
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.text.stream import TextStream

OWN, FORCED = "own", "forced"
"""Which answers are decoded: the model's own, or the reference instead of them."""

SAMPLED: Final = frozenset({"novel"})
"""Workloads whose own answers are sampled, because a small model's greedy prose repeats itself."""

_LaneKey = tuple[str, bool, int]
"""A workload, whether its answers are forced, and the index of a contestant."""


@dataclass(frozen=True)
class SpeedupPair:
    """A completion, with the baseline's and the plain one of the same task in the same turn."""

    turn: int
    task: Task
    completion: TimedCompletion
    baseline: TimedCompletion
    plain: TimedCompletion

    @property
    def speedup(self) -> float:
        """The speedup over the baseline."""
        return self.baseline.seconds_per_token / self.completion.seconds_per_token

    @property
    def over_plain(self) -> float:
        """The speedup over plain decoding; below 1 means that drafting cost time."""
        return self.plain.seconds_per_token / self.completion.seconds_per_token

    def predicted_speedup(self, curve: CostCurve) -> float:
        """The speedup over the baseline that a curve predicts for the answer's rounds.

        The curve holds the costs of this engine's forwards and predicts the speedup over plain
        decoding. The speedup of plain decoding over the baseline is the measured one.
        """
        plain = self.baseline.seconds_per_token / self.plain.seconds_per_token
        return plain * self.completion.rounds.predicted_speedup(curve)


@dataclass(frozen=True)
class SpeedupRow:
    """The results of a contestant on one workload.

    Attributes:
        answers: `own` or `forced`.
        same: how many answers were the same, token for token, as those of `compared_with`; None
            if there is nothing to compare.
        differences: for the other answers, the index of the first token that differs.
        compared_with: the contestant whose answers these are compared with.
        shares: where the time of decoding went, in shares of it; None for mlx-lm. `drafting` is
            proposing, planning and learning; `forward` is building forwards and waiting for their
            tokens, and `building` the part of it in which the host built them; `detokenizing` is
            timed afterwards, on the same tokens; `rest` is all else that the host did.
    """

    kind: str
    answers: str
    contestant: str
    pairs: Sequence[SpeedupPair]
    curve: CostCurve
    same: int | None = None
    differences: Sequence[int] = ()
    compared_with: str = ""
    shares: dict[str, float] | None = None

    @property
    def speedup(self) -> Spread:
        """The speedup over the baseline."""
        return Spread.of([pair.speedup for pair in self.pairs])

    @property
    def over_plain(self) -> Spread:
        """The speedup over plain decoding."""
        return Spread.of([pair.over_plain for pair in self.pairs])

    def speed_of(self, other: SpeedupRow) -> Spread:
        """The median speedup over another contestant, from answers of the same turns."""
        theirs = {pair.turn: pair.completion.seconds_per_token for pair in other.pairs}
        return Spread.of_median(
            [
                theirs[pair.turn] / pair.completion.seconds_per_token
                for pair in self.pairs
                if pair.turn in theirs
            ]
        )

    @property
    def milliseconds(self) -> Spread:
        """Milliseconds per token."""
        return Spread.of([1e3 * pair.completion.seconds_per_token for pair in self.pairs])

    @property
    def rounds(self) -> ReplayResult:
        """The rounds of all answers."""
        return sum((pair.completion.rounds for pair in self.pairs), ReplayResult())

    @property
    def predicted(self) -> float | None:
        """The median of the speedups that the cost curve predicts for the rounds of the answers.

        None if no drafts were verified: there is nothing to predict.
        """
        if not self.rounds.drafted:
            return None
        return median(pair.predicted_speedup(self.curve) for pair in self.pairs)

    @property
    def repeated(self) -> float:
        """The mean share of the answers' 4-grams that occurred before, in prompt or answer."""
        shares = [
            repeated_share(ReplayCase(pair.task.case.prompt, pair.completion.tokens))
            for pair in self.pairs
        ]
        return sum(shares) / len(shares)


def make_tasks(
    sets: dict[str, list[ReplayCase]], max_tokens: int, modes: Sequence[str]
) -> list[Task]:
    """The tasks: each request with the model's own answer, and with the forced reference."""
    return [
        Task(
            kind,
            case,
            max_tokens,
            forced=mode == FORCED,
            sampling=Sampling(1.0, seed=seed) if kind in SAMPLED else Sampling(),
        )
        for mode in modes
        for kind, cases in sets.items()
        for seed, case in enumerate(cases)
    ]


def contest(
    engine: Engine,
    tasks: Sequence[Task],
    contestants: Sequence[Contestant],
    *,
    rounds: int,
    curve: CostCurve,
    progress: Progress | None = None,
) -> tuple[list[SpeedupRow], bool]:
    """Lets contestants answer tasks in turns; after an interrupt, the results so far count.

    Args:
        contestants: the first is the baseline, the second decodes plainly.
        rounds: how often each answers each task, after a first time that warms up.
        curve: what forwards cost, for the predictions.
        progress: called before every answer, with the answers done and all answers.

    Returns:
        The rows, and whether all tasks were answered as often as they should be.
    """
    add_baselines(engine)
    lanes: dict[_LaneKey, list[SpeedupPair]] = {}
    firsts = {(task.kind, task.forced): task for task in tasks}.values()
    turns = [(task, False) for task in firsts] + [(task, True) for task in tasks] * rounds
    try:
        for turn, (task, counts) in enumerate(turns):
            found: dict[int, TimedCompletion | None] = {}
            # A contestant leaves warm caches to the next one, so the order changes.
            order = Random(turn).sample(range(len(contestants)), len(contestants))
            for place, index in enumerate(order):
                if progress:
                    progress(turn * len(contestants) + place, len(turns) * len(contestants))
                found[index] = contestants[index].complete(engine, task)
            baseline, plain = found[0], found[1]
            for index, completion in sorted(found.items()):
                if counts and completion and baseline and plain:
                    lane = lanes.setdefault((task.kind, task.forced, index), [])
                    lane.append(SpeedupPair(turn, task, completion, baseline, plain))
        complete = True
    except KeyboardInterrupt:
        if not lanes:
            raise
        complete = False
    return list(_rows(engine, lanes, contestants, curve)), complete


def _rows(
    engine: Engine,
    lanes: dict[_LaneKey, list[SpeedupPair]],
    contestants: Sequence[Contestant],
    curve: CostCurve,
) -> Iterator[SpeedupRow]:
    for (kind, forced, index), pairs in lanes.items():
        # Sampled answers depend on the engine's own draws: compare them with its plain answers.
        compared = 0 if pairs[0].task.sampling.greedy else 1
        others = lanes.get((kind, forced, compared))
        same, differences = None, []
        if not forced and index > compared and others is not None:
            both = zip(pairs, others, strict=False)
            found = [
                first_difference(own.completion.tokens, them.completion.tokens)
                for own, them in both
            ]
            differences = [place for place in found if place is not None]
            same = len(found) - len(differences)
        yield SpeedupRow(
            kind,
            FORCED if forced else OWN,
            str(contestants[index]),
            pairs,
            curve,
            same,
            differences,
            str(contestants[compared]) if same is not None else "",
            _shares(engine, pairs),
        )


def _shares(engine: Engine, pairs: Sequence[SpeedupPair]) -> dict[str, float] | None:
    found = [pair.completion.stats for pair in pairs if pair.completion.stats is not None]
    if not found:
        return None
    spent = sum(stats.decode_s for stats in found)
    shares = {
        "drafting": sum(stats.draft_s for stats in found) / spent,
        "forward": sum(stats.forward_s for stats in found) / spent,
        "building": sum(stats.build_s for stats in found) / spent,
        "detokenizing": sum(_seconds_to_text(engine, pair) for pair in pairs) / spent,
    }
    known = shares["drafting"] + shares["forward"] + shares["detokenizing"]
    return shares | {"rest": max(0.0, 1.0 - known)}


def _seconds_to_text(engine: Engine, pair: SpeedupPair) -> float:
    text = TextStream(engine.tokenizer.detokenizer(pair.task.case.prompt), ())
    begun = perf_counter()
    for token in pair.completion.tokens:
        text.feed(token, drafted=False)
    return perf_counter() - begun
