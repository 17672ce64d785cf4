"""Metrics: running sums over all answers, raised once an answer has ended and been cut."""

from dataclasses import dataclass, field

from akunu_py.stats import Stats


@dataclass(slots=True)
class Metrics:
    """What the server has done since it started.

    Attributes:
        answers: how many have ended, cancelled ones included.
        cancelled: how many of them nobody waited for any more.
        computed_tokens: of the prompts that were computed whole, those found in no cache.
        sums: over the statistics of all answers.
    """

    answers: int = 0
    cancelled: int = 0
    computed_tokens: int = 0
    sums: Stats = field(default_factory=Stats)

    def add(self, stats: Stats, *, cancelled: bool) -> None:
        """Books an answer that has ended."""
        self.answers += 1
        self.cancelled += cancelled
        if stats.generated_tokens or not cancelled:
            self.computed_tokens += stats.prompt_tokens - stats.cached_tokens
        self.sums.include(stats)
