"""`bench speedup`: contestants answer the same requests in turn, and their times are compared.

All run in one process, on the same weights and BLAS, in a new random order for every request, so
that a busy moment or a warm cache cannot favour one of them. Each speedup compares a pair: an
answer, and the baseline's answer to the same request in the same turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter
from typing import Any, Final

from akunu_py.bench import FORCED, OWN
from akunu_py.bench.contestants import Akunu, Contestant, Task, TimedCompletion
from akunu_py.bench.measurement import (
    Progress,
    Spread,
    heading,
    markdown_table,
)
from akunu_py.bench.replay import ReplayCase, ReplayResult, repeated_share
from akunu_py.engine import Engine
from akunu_py.options import Sampling
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.text.stream import TextStream
from akunu_py.tokens import common_prefix_length

SAMPLED: Final = frozenset({"novel", "code"})
"""Workloads whose own answers are sampled: a small model's greedy ones repeat themselves."""

SHOWN_NAMES: Final = {
    "plain": "no drafts",
    "auto + planner": "default",
    "copies + planner": "copies alone",
    "head + planner": "head alone",
}
"""The contestants in records, and their names there."""

_ABOUT: Final = {
    OWN: "the model's own answers",
    FORCED: "forced answers: the reference's tokens count as the model's choices, "
    "and every forward pass is computed and timed",
}

_LaneKey = tuple[str, bool, int]  # a workload, whether it is forced, a contestant's index


@dataclass(frozen=True)
class SpeedupPair:
    """A completion, and those of the baseline, of decoding without drafts and of the first drafter,
    for the same task in the same turn."""

    task: Task
    completion: TimedCompletion
    baseline: TimedCompletion
    plain: TimedCompletion
    first: TimedCompletion | None

    @property
    def expected(self) -> TimedCompletion:
        """The answer that this should equal: sampled ones depend on the engine's random numbers."""
        return self.baseline if self.task.sampling.greedy else self.plain

    def over(self, other: TimedCompletion) -> float:
        return other.seconds_per_token / self.completion.seconds_per_token

    def predicted_speedup(self, curve: CostCurve) -> float:
        """The predicted speedup over plain decoding times the measured one of plain decoding over
        the baseline."""
        plain = self.baseline.seconds_per_token / self.plain.seconds_per_token
        return plain * self.completion.rounds.predicted_speedup(curve)


@dataclass(frozen=True)
class SpeedupRow:
    """The results of a contestant on one workload, whose answers should be those of
    `compared_with`.

    `shares` of the decoding time, None for mlx-lm: `drafting` is proposing, planning and learning;
    `forward` building passes and waiting for them, `building` the host's part of it; `detokenizing`
    is timed afterwards on the same tokens; `rest` is everything else.
    """

    kind: str
    answers: str
    contestant: str
    pairs: Sequence[SpeedupPair]
    curve: CostCurve
    compared_with: str = ""
    shares: dict[str, float] | None = None

    @property
    def is_sampled(self) -> bool:
        return self.answers == OWN and self.kind in SAMPLED

    @property
    def differences(self) -> list[int]:
        """The index of the first wrong token of each answer that differs from the expected one."""
        both = [(pair.completion.tokens, pair.expected.tokens) for pair in self.pairs]
        differing = [two for two in both if two[0] != two[1]] if self.compared_with else []
        return [common_prefix_length(*two) for two in differing]

    @property
    def same(self) -> int | None:
        return len(self.pairs) - len(self.differences) if self.compared_with else None

    @property
    def speedup(self) -> Spread:
        return Spread.of([pair.over(pair.baseline) for pair in self.pairs])

    @property
    def over_plain(self) -> Spread:
        return Spread.of([pair.over(pair.plain) for pair in self.pairs])

    @property
    def first_over(self) -> Spread | None:
        """The speed of the first drafter over this contestant's; None if there is no drafter."""
        ratios = [1.0 / pair.over(pair.first) for pair in self.pairs if pair.first]
        return Spread.of(ratios) if ratios else None

    @property
    def milliseconds(self) -> Spread:
        return Spread.of([1e3 * pair.completion.seconds_per_token for pair in self.pairs])

    @property
    def rounds(self) -> ReplayResult:
        return sum((pair.completion.rounds for pair in self.pairs), ReplayResult())

    @property
    def predicted(self) -> float | None:
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

    def as_json(self) -> dict[str, Any]:
        rounds = self.rounds
        return {
            "workload": self.kind,
            "answers": self.answers,
            "sampled": self.is_sampled,
            "contestant": self.contestant,
            "pairs": len(self.pairs),
            "ms_per_token": _spread_json(self.milliseconds),
            "speedup": _spread_json(self.speedup),
            "over_plain": _spread_json(self.over_plain),
            "first_drafter_over": self.first_over and _spread_json(self.first_over),
            "predicted_speedup": self.predicted,
            "tokens_per_forward": rounds.tokens_per_forward,
            "drafted": rounds.drafted,
            "accepted": rounds.accepted,
            "acceptance": rounds.acceptance,
            "repeated_share": self.repeated,
            "compared_with": self.compared_with,
            "same_answers": self.same,
            "differences_at": self.differences,
            "shares": self.shares,
        }

    def cells(self) -> tuple[str, ...]:
        """The figures as text: milliseconds, speedup, prediction, tokens per pass, acceptance."""
        return (
            f"{self.milliseconds.median:.2f}",
            f"{self.speedup:.2f}",
            f"{self.predicted:.2f}" if self.predicted else "",
            f"{self.rounds.tokens_per_forward:.2f}",
            f"{self.rounds.acceptance:.0%}" if self.rounds.drafted else "",
        )

    def share_cell(self) -> str:
        """Percent of the time: drafting, building, waiting, text, rest."""
        if (shares := self.shares) is None:
            return ""
        waiting = shares["forward"] - shares["building"]
        parts = [shares["drafting"], shares["building"], waiting, shares["detokenizing"]]
        parts.append(shares["rest"])
        return ", ".join(f"{100 * part:.0f}" for part in parts)


@dataclass(frozen=True)
class SpeedupReport:
    """All that was measured; each contestant answered each request `rounds` times.

    It is not `complete` if the run was interrupted.
    """

    machine: dict[str, Any]
    model: dict[str, Any]
    curve: CostCurve
    max_tokens: int
    rounds: int
    rows: Sequence[SpeedupRow]
    complete: bool = True

    @property
    def prediction_error(self) -> float | None:
        errors = [
            abs(row.speedup.median / row.predicted - 1)
            for row in self.rows
            if row.predicted is not None
        ]
        return median(errors) if errors else None

    def as_json(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "model": self.model,
            "curve": self.curve.as_json(),
            "max_tokens": self.max_tokens,
            "rounds": self.rounds,
            "complete": self.complete,
            "answers": _ABOUT,
            "prediction_error": self.prediction_error,
            "rows": [row.as_json() for row in self.rows],
        }

    @property
    def heading(self) -> str:
        return heading(self.machine, self.model)

    def markdown(self, shown: Mapping[str, str] | None = None) -> list[str]:
        """The report with the contestants that are `shown`, by the names given there, or with
        all."""
        names = shown or {}
        heads = ("text", "answers", "", "ms per token", "over mlx-lm", "predicted",
                 "tokens per pass", "acceptance", "over no drafts", "first drafter over it",
                 "same answers",
                 "% of the time: draft, build, wait, text, rest")  # fmt: skip
        cells = [
            (row.kind + (", sampled" if row.is_sampled else ""), row.answers,
             names.get(row.contestant, row.contestant), *row.cells(),
             f"{row.over_plain:.2f}",
             f"{row.first_over:.2f}" if row.first_over else "",
             "" if row.same is None else f"{row.same} of {len(row.pairs)}",
             row.share_cell())
            for row in self.rows
            if shown is None or row.contestant in shown
        ]  # fmt: skip
        about = (
            f"Answers of up to {self.max_tokens} tokens. Every contestant gave each answer "
            f"{self.rounds} times, in turns; {max(len(row.pairs) for row in self.rows)} pairs in a "
            "row. Medians of pairs, with their quartiles in brackets. Own answers are the model's; "
            "forced answers are the right ones in place of the model's choices, with every forward "
            "pass computed. Predictions count forward passes, not the time of guesses. Where the "
            "first drafter is above 1 over another contestant, it was faster in the same turn."
        )
        return [about, markdown_table(heads, cells), "\n\n".join(self._summary())]

    def _summary(self) -> Iterator[str]:
        if not self.complete:
            yield "The run was interrupted: some rows have fewer pairs or are missing."
        if self.prediction_error is not None:
            yield (
                "Measured and predicted speedups are "
                f"{self.prediction_error:.0%} apart in the median."
            )


def _spread_json(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "lower_quartile": spread.low, "upper_quartile": spread.high}


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
            sampling=Sampling(temperature=1.0, seed=seed)
            if mode == OWN and kind in SAMPLED
            else Sampling(),
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
    """Lets contestants answer each task `rounds` times in turn, after a warm-up.

    The first contestant is the baseline, the second decodes without drafts. `curve` is for the
    predictions. After an interrupt, the results so far count. Returns the rows, and whether they
    are complete.
    """
    lanes: dict[_LaneKey, list[SpeedupPair]] = {}
    drafting = [
        index
        for index, one in enumerate(contestants)
        if isinstance(one, Akunu) and one.drafter != "none"
    ]
    firsts = {(task.kind, task.forced): task for task in tasks}.values()
    turns = [(task, False) for task in firsts] + [(task, True) for task in tasks] * rounds
    # What is learnt from forced answers, which the model would seldom give, misleads on its own.
    turns.sort(key=lambda turn: turn[0].forced)
    try:
        for turn, (task, counts) in enumerate(turns):
            found: dict[int, TimedCompletion | None] = {}
            # A contestant leaves warm caches for the next one, so the order changes.
            order = Random(turn).sample(range(len(contestants)), len(contestants))
            for place, index in enumerate(order):
                if progress:
                    progress(turn * len(contestants) + place, len(turns) * len(contestants))
                found[index] = contestants[index].complete(engine, task)
            baseline, plain = found[0], found[1]
            for index, completion in sorted(found.items()):
                if counts and completion and baseline and plain:
                    lane = lanes.setdefault((task.kind, task.forced, index), [])
                    first = found[drafting[0]] if drafting else None
                    lane.append(SpeedupPair(task, completion, baseline, plain, first))
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
        compared = 0 if pairs[0].task.sampling.greedy else 1
        yield SpeedupRow(
            kind,
            FORCED if forced else OWN,
            str(contestants[index]),
            pairs,
            curve,
            "" if forced or index <= compared else str(contestants[compared]),
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
    text = TextStream(engine.tokenizer.detokenizer(pair.task.case.prompt))
    begun = perf_counter()
    for token in pair.completion.tokens:
        text.feed(token)
    return perf_counter() - begun
