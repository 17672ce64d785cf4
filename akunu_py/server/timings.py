"""Timings: how long an answer took, in the words of llama-server, which several clients read."""

from typing import Any

from akunu_py.stats import Stats


def timings(stats: Stats) -> dict[str, Any]:
    """How long the prompt and the answer took; only what was computed counts.

    `draft_n` and `draft_n_accepted` count after the text was cut at a stop, and are there only if
    anything was drafted.
    """
    computed = max(stats.prompt_tokens - stats.cached_tokens, 0)
    found = {"cache_n": stats.cached_tokens}
    found |= _rates("prompt", computed, stats.prefill_s)
    found |= _rates("predicted", stats.generated_tokens, stats.decode_s)
    if stats.drafted:
        found |= {"draft_n": stats.drafted, "draft_n_accepted": stats.accepted}
    return found


def _rates(name: str, tokens: int, seconds: float) -> dict[str, Any]:
    milliseconds = seconds * 1000
    return {
        f"{name}_n": tokens,
        f"{name}_ms": round(milliseconds, 3),
        f"{name}_per_token_ms": round(milliseconds / tokens, 4) if tokens else 0.0,
        f"{name}_per_second": round(tokens / seconds, 3) if seconds > 0 else 0.0,
    }
