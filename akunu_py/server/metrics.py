"""Metrics: sums over all requests, and their form in Prometheus's text format."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from akunu_py.sequence import Kind
from akunu_py.stats import Stats

_PREFIX: Final = "llamacpp:"
_BY_KIND: Final = (
    ("queue_seconds_by_kind_total", "Seconds that requests waited", "queue_s"),
    ("tokens_predicted_by_kind_total", "Tokens generated", "generated_tokens"),
    ("draft_tokens_by_kind_total", "Tokens drafted", "drafted"),
    ("accepted_tokens_by_kind_total", "Draft tokens accepted", "accepted"),
)


@dataclass(slots=True)
class Metrics:
    """What the server has done since it started; a request counts when it has ended.

    Attributes:
        answers: how many requests have ended, including cancelled ones.
        cancelled: how many of them were cancelled.
        longest: the most tokens that a prompt and its answer had together.
        computed_tokens: prompt tokens computed, without those found in a cache. Prompts that were
            cancelled before their end do not count.
        sums: of all requests, and `by_kind` of each kind of them.
    """

    answers: int = 0
    cancelled: int = 0
    longest: int = 0
    computed_tokens: int = 0
    sums: Stats = field(default_factory=Stats)
    by_kind: dict[Kind, Stats] = field(default_factory=lambda: {kind: Stats() for kind in Kind})

    def add(self, stats: Stats, kind: Kind, *, cancelled: bool) -> None:
        """Adds a request that has ended."""
        self.answers += 1
        self.cancelled += cancelled
        self.longest = max(self.longest, stats.prompt_tokens + stats.generated_tokens)
        if stats.generated_tokens or not cancelled:
            self.computed_tokens += stats.prompt_tokens - stats.cached_tokens
        self.sums.include(stats)
        self.by_kind[kind].include(stats)


def prometheus_lines(
    metrics: Metrics, *, processing: int, waiting: int, rounds: int = 0, advanced: int = 0
) -> Iterator[str]:
    """The lines of Prometheus's text format, under llama-server's names.

    Args:
        metrics: the sums.
        processing, waiting: how many requests do.
        rounds: of any number of sequences.
        advanced: the sum of these numbers.
    """
    sums, computed = metrics.sums, metrics.computed_tokens
    computed_per_s = computed / sums.prefill_s if sums.prefill_s else 0.0
    entries: tuple[tuple[str, str, str, float], ...] = (
        ("counter", "prompt_tokens_total", "Prompt tokens computed, not cached.", computed),
        ("counter", "prompt_seconds_total", "Seconds spent on prompts.", sums.prefill_s),
        ("counter", "prompt_tokens_cached_total", "Cached prompt tokens.", sums.cached_tokens),
        ("counter", "queue_seconds_total", "Seconds that requests waited.", sums.queue_s),
        ("counter", "tokens_predicted_total", "Tokens generated.", sums.generated_tokens),
        ("counter", "tokens_predicted_seconds_total",
         "Seconds of generating; those of requests at the same time are added.", sums.decode_s),
        ("counter", "n_decode_total", "Forwards while generating.",
         sums.target_forwards - sums.shared_forwards),
        ("counter", "n_tokens_max", "The most tokens of a prompt and its answer.", metrics.longest),
        ("counter", "requests_total", "Requests that have ended.", metrics.answers),
        ("counter", "requests_cancelled_total", "Requests cancelled.", metrics.cancelled),
        ("counter", "spec_decode_num_drafts_total", "Drafts verified.",
         sum(sums.accepted_counts.values())),
        ("counter", "spec_decode_num_draft_tokens_total", "Tokens drafted.", sums.drafted),
        ("counter", "spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
         sums.accepted),
        ("gauge", "prompt_tokens_seconds", "Prompt tokens per second.", computed_per_s),
        ("gauge", "predicted_tokens_seconds", "Tokens per second of a request on average.",
         sums.tokens_per_s),
        ("gauge", "n_busy_slots_per_decode", "Sequences per round of generating.",
         advanced / rounds if rounds else 0.0),
        ("gauge", "requests_processing", "Requests being worked on.", processing),
        ("gauge", "requests_deferred", "Requests that wait.", waiting),
    )  # fmt: skip
    for kind, name, meaning, value in entries:
        yield from _head(name, meaning, kind)
        yield f"{_PREFIX}{name} {value:.12g}"
    for name, meaning, read in _BY_KIND:
        yield from _head(name, f"{meaning}, by kind of request.", "counter")
        for kind_, part in metrics.by_kind.items():
            yield f'{_PREFIX}{name}{{kind="{kind_}"}} {getattr(part, read):.12g}'
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    yield from _head(name, "Draft tokens accepted, by their position in the draft.", "counter")
    for position, count in enumerate(sums.accepted_by_position):
        yield f'{_PREFIX}{name}{{position="{position}"}} {count}'


def _head(name: str, meaning: str, kind: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"
