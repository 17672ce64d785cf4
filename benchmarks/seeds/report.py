"""What the seed benchmark found, as Markdown, beside what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from akunu_py.bench.measurement import Spread
from benchmarks.records import markdown_table
from benchmarks.seeds.char_model import CharModel
from benchmarks.seeds.char_text import CharText
from benchmarks.seeds.measure import CaseOutcome, Size, TimedAnswer

PUBLISHED_SOURCE: Final = (
    'The blog post "Trading accuracy for parallelism": nanoGPT of 56,769 parameters on '
    "TinyShakespeare, validation loss 2.80, answers of 16 characters (longer: 24), one seed, one "
    "run, no warm-up. Its target forwards were 0.40-0.62 of the baseline's, its target tokens "
    "1.13-1.70. One of its baselines, that of the trigram at K=2, ran at 545 tok/s and the others "
    "at about 900, which makes that speedup too high."
)


class Published(NamedTuple):
    """What was published for a case: the speedup and the acceptance rate."""

    speedup: float
    acceptance: float


PUBLISHED: Final = {
    ("K=2", "bigram"): Published(1.54, 0.636),
    ("K=4", "bigram"): Published(1.73, 0.481),
    ("K=6", "bigram"): Published(1.72, 0.347),
    ("K=4, noise 0.5", "bigram"): Published(1.78, 0.522),
    ("K=4, longer", "bigram"): Published(1.78, 0.462),
    ("K=2", "trigram"): Published(2.13, 0.399),
    ("K=4", "trigram"): Published(1.40, 0.281),
    ("K=6", "trigram"): Published(1.42, 0.257),
    ("K=4, noise 0.5", "trigram"): Published(1.40, 0.319),
    ("K=4, longer", "trigram"): Published(1.49, 0.335),
}


_RESAMPLES: Final = 2000


def median_interval(values: Sequence[float]) -> Spread:
    """The median of 1 value or more, and its 95% interval by percentile bootstrap; repeatable."""
    sample = np.asarray(values, np.float64)
    draws = np.random.default_rng(0).integers(len(sample), size=(_RESAMPLES, len(sample)))
    medians = np.median(sample[draws], axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Spread(float(np.median(sample)), float(low), float(high))


@dataclass(frozen=True)
class Side:
    """The plain or the drafted answers of a case: sums, and medians over answers.

    Attributes:
        tokens_per_s: tokens generated per second, prefill included.
        target_forwards: forwards that predicted a token.
        target_tokens: positions that the target computed, prompts included.
        latency_ms: time of an answer.
        ttft_ms: time to an answer's first token.
        forward_ms: the part of an answer's latency that the loop spent on forwards.
    """

    tokens_per_s: float
    target_forwards: int
    target_tokens: int
    latency_ms: float
    ttft_ms: float
    forward_ms: float

    @classmethod
    def of(cls, answers: Sequence[TimedAnswer]) -> Side:
        stats = [answer.stats for answer in answers]
        return cls(
            sum(one.generated_tokens for one in stats) / sum(one.seconds for one in answers),
            sum(one.target_forwards for one in stats),
            sum(one.prompt_tokens - 1 + one.target_tokens for one in stats),
            1e3 * median(one.seconds for one in answers),
            1e3 * median(one.ttft_s for one in stats),
            1e3 * median(one.forward_s for one in stats),
        )


@dataclass(frozen=True)
class SeedsRow:
    """What one draft did in one case.

    Attributes:
        case: its name.
        draft: which model drafted.
        speedup: the median over pairs of a plain answer's seconds over a drafted one's.
        plain: the plain answers, which are the baseline.
        drafted: the drafted answers.
        acceptance: accepted draft tokens over drafted ones.
        verified: tokens that a verification emitted, on average.
        bonus: how many tokens followed drafts that were accepted whole.
        corrected: how many tokens were drawn again after a rejection.
        published: the figures to compare with.
    """

    case: str
    draft: str
    speedup: Spread
    plain: Side
    drafted: Side
    acceptance: float
    verified: float
    bonus: int
    corrected: int
    published: Published

    @classmethod
    def of(cls, outcome: CaseOutcome) -> SeedsRow:
        """Sums up the pairs of a case; there must be one or more."""
        drafted = [pair.drafted for pair in outcome.pairs]
        stats = [answer.stats for answer in drafted]
        accepted = sum(one.accepted for one in stats)
        bonus = sum(one.bonus for one in stats)
        corrected = sum(one.corrected for one in stats)
        return cls(
            outcome.case.name,
            outcome.draft,
            median_interval([pair.plain.seconds / pair.drafted.seconds for pair in outcome.pairs]),
            Side.of([pair.plain for pair in outcome.pairs]),
            Side.of(drafted),
            accepted / max(1, sum(one.drafted for one in stats)),
            (accepted + bonus + corrected) / max(1, bonus + corrected),
            bonus,
            corrected,
            PUBLISHED[outcome.case.name, outcome.draft],
        )

    def ratio(self, figure: Callable[[Side], float]) -> float:
        return figure(self.drafted) / figure(self.plain)


@dataclass(frozen=True)
class MeasuredModel:
    """A model that was measured, and what was found."""

    model: CharModel
    rows: Sequence[SeedsRow]


@dataclass(frozen=True)
class SeedsReport:
    """A whole run, on a machine as `describe_machine` describes it."""

    machine: dict[str, Any]
    text: CharText
    size: Size
    targets: Sequence[MeasuredModel]

    def markdown(self) -> str:
        size, text = self.size, self.text
        parts = [
            f"Text: {text.name}, {len(text.content):,} characters, {len(text.alphabet)} of them "
            f"different. {size.seeds} seeds of {size.requests} prompts; answers of "
            f"{size.max_tokens} characters (longer: {size.longer_tokens}), sampled at "
            "temperature 1, each next to a plain one.",
            *(_describe(target) for target in self.targets),
            f"Published: {PUBLISHED_SOURCE}",
        ]
        return "\n\n".join(parts)


def _describe(target: MeasuredModel) -> str:
    model = target.model
    return "\n\n".join(
        [
            f"## A target of {model.parameters:,} parameters after {model.steps:,} steps: "
            f"validation loss {model.validation_loss:.2f}",
            "Speedup: the median over pairs, and its 95% bootstrap interval.",
            _speed_table(target.rows),
            "In brackets: times what the baseline took. Target tokens include those of the prompt.",
            _work_table(target.rows),
        ]
    )


def _speed_table(rows: Sequence[SeedsRow]) -> str:
    heads = ("case", "draft", "plain tok/s", "drafted tok/s", "speedup", "published",
             "accepted", "published")  # fmt: skip
    return markdown_table(
        heads,
        [
            (
                row.case,
                row.draft,
                f"{row.plain.tokens_per_s:.0f}",
                f"{row.drafted.tokens_per_s:.0f}",
                f"{row.speedup:.2f}",
                f"{row.published.speedup:.2f}",
                f"{row.acceptance:.1%}",
                f"{row.published.acceptance:.1%}",
            )
            for row in rows
        ],
    )


def _work_table(rows: Sequence[SeedsRow]) -> str:
    heads = ("case", "draft", "target passes", "target tokens", "tokens per verification",
             "latency ms", "TTFT ms", "pass ms", "bonus", "corrected")  # fmt: skip
    return markdown_table(
        heads,
        [
            (
                row.case,
                row.draft,
                _compared(row, lambda side: side.target_forwards, ","),
                _compared(row, lambda side: side.target_tokens, ","),
                f"{row.verified:.2f}",
                _compared(row, lambda side: side.latency_ms, ".1f"),
                _compared(row, lambda side: side.ttft_ms, ".2f"),
                _compared(row, lambda side: side.forward_ms, ".1f"),
                row.bonus,
                row.corrected,
            )
            for row in rows
        ],
    )


def _compared(row: SeedsRow, figure: Callable[[Side], float], spec: str) -> str:
    return f"{figure(row.drafted):{spec}} ({row.ratio(figure):.2f})"
