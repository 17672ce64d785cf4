"""`/metrics`: the server's sums in Prometheus's text format, under llama-server's names."""

from collections.abc import Iterator
from typing import Final

from starlette.responses import PlainTextResponse, Response

from akunu_py.server.contract import Call
from akunu_py.server.service import Service

_PREFIX: Final = "llamacpp:"
_MEDIA_TYPE: Final = "text/plain; version=0.0.4"


async def metrics(call: Call) -> Response:
    """All of them; they are there while the model loads, too."""
    return PlainTextResponse("\n".join(_lines(call.service)) + "\n", media_type=_MEDIA_TYPE)


def _lines(service: Service) -> Iterator[str]:
    sums = service.metrics.sums
    computed = service.metrics.computed_tokens
    counters: tuple[tuple[str, str, float], ...] = (
        ("prompt_tokens_total", "Prompt tokens computed, cached ones left out.", computed),
        ("prompt_seconds_total", "Seconds spent on prompts.", sums.prefill_s),
        ("prompt_tokens_cached_total", "Prompt tokens found in a cache.", sums.cached_tokens),
        ("tokens_predicted_total", "Tokens generated.", sums.generated_tokens),
        ("tokens_predicted_seconds_total", "Seconds spent on generating.", sums.decode_s),
        ("n_decode_total", "Forwards of the model while generating.", sums.target_forwards),
        ("requests_total", "Answers that have ended.", service.metrics.answers),
        ("requests_cancelled_total", "Answers that nobody waited for.", service.metrics.cancelled),
        ("spec_decode_num_drafts_total", "Drafts verified.", sum(sums.accepted_counts.values())),
        ("spec_decode_num_draft_tokens_total", "Tokens drafted.", sums.drafted),
        ("spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", sums.accepted),
    )
    gauges: tuple[tuple[str, str, float], ...] = (
        ("prompt_tokens_seconds", "Prompt tokens a second.", _rate(computed, sums.prefill_s)),
        ("predicted_tokens_seconds", "Tokens generated a second.", sums.tokens_per_s),
        ("requests_processing", "Requests under way.", service.processing),
        ("requests_deferred", "Requests that wait.", service.waiting),
    )
    for kind, entries in (("counter", counters), ("gauge", gauges)):
        for name, meaning, value in entries:
            yield from _head(name, meaning, kind)
            yield f"{_PREFIX}{name} {value:.12g}"
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    yield from _head(name, "Drafted tokens accepted, by their place in the draft.", "counter")
    for position, count in enumerate(sums.accepted_by_position):
        yield f'{_PREFIX}{name}{{position="{position}"}} {count}'


def _head(name: str, meaning: str, kind: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0
