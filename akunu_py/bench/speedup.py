"""`bench speedup`: contestants answer the same requests in turns; what each was faster by.

All in one process, on the same weights and BLAS, their order drawn anew for every request, so that
neither a busy moment nor what somebody leaves behind can fall on one of them alone. Each speedup is
that of a pair: an answer, and the baseline's to the same request in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Final

from akunu_py.bench.bootstrap import Interval
from akunu_py.bench.contestants import Answer, Contestant, Task
from akunu_py.bench.replay import ReplayCase, ReplayResult, repeated_share
from akunu_py.bench.timing import Spread
from akunu_py.engine import Engine
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.text.stream import TextStream

OWN, FORCED = "own", "forced"
"""Whose answers are decoded: the model's own, or the reference in their place."""

SAMPLED: Final = frozenset({"novel"})
"""Workloads whose own answers are sampled: a small model's greedy prose runs in circles."""

_Place = tuple[str, bool, int]
"""A workload, whether its answers are forced, and the index of a contestant."""

Progress = Callable[[int, int], None]
"""Called with the answers that were given and those that are to be."""


@dataclass(frozen=True)
class Pair:
    """An answer, and to the same request in the same turn the baseline's and the plain one."""

    turn: int
    task: Task
    answer: Answer
    baseline: Answer
    plain: Answer

    @property
    def speedup(self) -> float:
        """Over the baseline."""
        return self.baseline.seconds_per_token / self.answer.seconds_per_token

    @property
    def over_plain(self) -> float:
        """The speedup over plain decoding: below 1, drafting has cost time."""
        return self.plain.seconds_per_token / self.answer.seconds_per_token

    def predicted_speedup(self, curve: CostCurve) -> float:
        """Over the baseline, as `curve` tells what the rounds bring over plain decoding.

        The curve knows this engine's forwards, not the baseline's; so by how much plain decoding
        beats the baseline is measured.
        """
        plain = self.baseline.seconds_per_token / self.plain.seconds_per_token
        return plain * self.answer.rounds.predicted_speedup(curve)


@dataclass(frozen=True)
class Shares:
    """Where decoding time went, in shares of it.

    Attributes:
        drafting: proposing, planning, and learning from what was emitted.
        forward: building forwards and waiting for what they chose.
        detokenizing: turning tokens into text; timed afterwards, on the same tokens.
        rest: all else that the host did.
    """

    drafting: float
    forward: float
    detokenizing: float
    rest: float


@dataclass(frozen=True)
class SpeedupRow:
    """What a contestant came to on one workload.

    Attributes:
        kind: the workload.
        answers: `own` or `forced`.
        contestant: its name.
        pairs: what was timed.
        curve: what forwards cost, to predict with.
        same: how many answers were the same, token for token, as those they are compared with;
            None where there is nothing to compare.
        differences: for the others, how many tokens were the same until they parted.
        compared_with: whose answers these are.
        shares: where the time went; None for mlx-lm.
    """

    kind: str
    answers: str
    contestant: str
    pairs: Sequence[Pair]
    curve: CostCurve
    same: int | None = None
    differences: Sequence[int] = ()
    compared_with: str = ""
    shares: Shares | None = None

    @property
    def speedup(self) -> Spread:
        """Over the baseline."""
        return Spread.of([pair.speedup for pair in self.pairs])

    @property
    def over_plain(self) -> Spread:
        """Over plain decoding."""
        return Spread.of([pair.over_plain for pair in self.pairs])

    def speed_of(self, other: SpeedupRow) -> Interval:
        """This one's speed over another's, answer by answer given in the same turns."""
        theirs = {pair.turn: pair.answer.seconds_per_token for pair in other.pairs}
        return Interval.of_median(
            [
                theirs[pair.turn] / pair.answer.seconds_per_token
                for pair in self.pairs
                if pair.turn in theirs
            ]
        )

    @property
    def milliseconds(self) -> Spread:
        """A token."""
        return Spread.of([1e3 * pair.answer.seconds_per_token for pair in self.pairs])

    @property
    def rounds(self) -> ReplayResult:
        """The rounds of all answers."""
        return sum((pair.answer.rounds for pair in self.pairs), ReplayResult())

    @property
    def predicted(self) -> float | None:
        """The median of the speedups that the cost curve gives for the rounds that were run.

        None where no drafts were verified: there is nothing to predict.
        """
        if not self.rounds.drafted:
            return None
        return median(pair.predicted_speedup(self.curve) for pair in self.pairs)

    @property
    def repeated(self) -> float:
        """The mean share of 4-grams in the answers that stood before, in prompt or answer."""
        shares = [
            repeated_share(ReplayCase(pair.task.case.prompt, pair.answer.tokens))
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
    """Lets contestants answer tasks in turns; an interrupt ends that with what there is.

    Args:
        engine: whose model they all use.
        tasks: what to answer.
        contestants: who answers; the first is the baseline, the second decodes plainly.
        rounds: how often each answers each task, besides a first time that warms up.
        curve: what forwards cost, to predict with.
        progress: told how far it is.

    Returns:
        What each came to, and whether all tasks were answered as often as they should be.
    """
    lanes: dict[_Place, list[Pair]] = {}
    firsts = {(task.kind, task.forced): task for task in tasks}.values()
    turns = [(task, False) for task in firsts] + [(task, True) for task in tasks] * rounds
    try:
        for turn, (task, counts) in enumerate(turns):
            answers: dict[int, Answer | None] = {}
            # Whoever went before leaves caches behind, so it is never the same one.
            order = Random(turn).sample(range(len(contestants)), len(contestants))
            for place, index in enumerate(order):
                if progress:
                    progress(turn * len(contestants) + place, len(turns) * len(contestants))
                answers[index] = contestants[index].answer(engine, task)
            baseline, plain = answers[0], answers[1]
            for index, answer in sorted(answers.items()):
                if counts and answer and baseline and plain:
                    lane = lanes.setdefault((task.kind, task.forced, index), [])
                    lane.append(Pair(turn, task, answer, baseline, plain))
        complete = True
    except KeyboardInterrupt:
        if not lanes:
            raise
        complete = False
    return list(_rows(engine, lanes, contestants, curve)), complete


def _rows(
    engine: Engine,
    lanes: dict[_Place, list[Pair]],
    contestants: Sequence[Contestant],
    curve: CostCurve,
) -> Iterator[SpeedupRow]:
    for (kind, forced, index), pairs in lanes.items():
        # Sampled answers follow akunu's own chances, so they are compared with its plain ones.
        judge = 0 if pairs[0].task.sampling.greedy else 1
        judged = lanes.get((kind, forced, judge))
        same, differences = None, []
        if not forced and index > judge and judged is not None:
            both = zip(pairs, judged, strict=False)
            parted = [_parts_at(own.answer.tokens, other.answer.tokens) for own, other in both]
            differences = [place for place in parted if place is not None]
            same = len(parted) - len(differences)
        yield SpeedupRow(
            kind,
            FORCED if forced else OWN,
            str(contestants[index]),
            pairs,
            curve,
            same,
            differences,
            str(contestants[judge]) if same is not None else "",
            _shares(engine, pairs),
        )


def _parts_at(tokens: Sequence[int], others: Sequence[int]) -> int | None:
    """Where two answers part; None if they are the same."""
    if list(tokens) == list(others):
        return None
    pairs = enumerate(zip(tokens, others, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(tokens), len(others)))


def _shares(engine: Engine, pairs: Sequence[Pair]) -> Shares | None:
    books = [pair.answer.stats for pair in pairs if pair.answer.stats is not None]
    if not books:
        return None
    spent = sum(stats.decode_s for stats in books)
    drafting = sum(stats.draft_s for stats in books) / spent
    forward = sum(stats.forward_s for stats in books) / spent
    detokenizing = sum(_seconds_to_text(engine, pair) for pair in pairs) / spent
    rest = max(0.0, 1.0 - drafting - forward - detokenizing)
    return Shares(drafting, forward, detokenizing, rest)


def _seconds_to_text(engine: Engine, pair: Pair) -> float:
    text = TextStream(engine.tokenizer.detokenizer(pair.task.case.prompt), ())
    begun = perf_counter()
    for token in pair.answer.tokens:
        text.feed(token, drafted=False)
    return perf_counter() - begun
