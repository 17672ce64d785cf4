"""Tally: what the answers to one request took together, in OpenAI's words and in llama-server's."""

from typing import Any

from akunu_py.server.timings import timings
from akunu_py.stats import Stats


class Tally:
    """Sums over answers."""

    def __init__(self) -> None:
        self._sums = Stats()
        self._prompt_tokens = 0
        self._cached_tokens = 0

    def add(self, stats: Stats, *, new_prompt: bool) -> None:
        """Books an answer that has ended; a prompt counts once, however many answers it has."""
        self._sums.include(stats)
        if new_prompt:
            self._prompt_tokens += stats.prompt_tokens
            self._cached_tokens += stats.cached_tokens

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage`. Predicted tokens are all drafted ones, whoever predicted them."""
        sums = self._sums
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": sums.generated_tokens,
            "total_tokens": self._prompt_tokens + sums.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sums.accepted,
                "rejected_prediction_tokens": sums.drafted - sums.accepted,
            },
        }

    def timings(self) -> dict[str, Any]:
        """llama-server's `timings`."""
        return timings(self._sums)
