"""Metrics: running sums over all answers, raised once an answer has ended and been cut."""

from dataclasses import dataclass, field

from akunu_py.stats import Stats


@dataclass(slots=True)
class Metrics:
    """What the server has done since it started.

    Attributes:
        answers: how many have ended, cancelled ones included.
        cancelled: how many of them nobody waited for any more.
        sums: over their statistics.
    """

    answers: int = 0
    cancelled: int = 0
    sums: Stats = field(default_factory=Stats)

    def add(self, stats: Stats, *, cancelled: bool) -> None:
        """Books an answer that has ended."""
        self.answers += 1
        self.cancelled += cancelled
        self.sums.include(stats)
