"""Monitoring: `/health`, `/slots` and `/metrics` as in llama-server, and `/status.json`, the
figures of the status page."""

from collections.abc import Iterator
from time import time
from typing import Any, Final

from starlette.responses import Response

from akunu_py.package import __version__
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.rounds import Stats
from akunu_py.sequence import Sequence
from akunu_py.server.body import Body
from akunu_py.server.errors import LoadingError
from akunu_py.server.pool import Pool
from akunu_py.server.service import Service
from akunu_py.server.wire import Answer, JSONAnswer, PoolEndpoint

_BEGUN: Final = time()
_PREFIX: Final = "llamacpp:"
_BY_KIND: Final = (
    ("queue_seconds_by_kind_total", "Seconds that requests waited", "queue_s"),
    ("tokens_predicted_by_kind_total", "Tokens generated", "generated_tokens"),
    ("draft_tokens_by_kind_total", "Tokens drafted", "drafted"),
    ("accepted_tokens_by_kind_total", "Draft tokens accepted", "accepted"),
)


def _health(pool: Pool, _body: Body) -> Response:
    loading = pool.loading
    if not pool.loads:
        raise LoadingError
    return JSONAnswer({"status": "ok"} | ({"loading": loading} if loading else {}))


def _slots(pool: Pool, _: Body) -> Response:
    """An entry for each running request and for each free place of each loaded model. There are
    more entries than places while urgent requests pause others. `/status.json` has the caches."""
    slots = [slot for service in pool.services for slot in _slots_of(service)]
    return JSONAnswer([{**slot, "id": number} for number, slot in enumerate(slots)])


def _slots_of(service: Service) -> list[dict[str, Any]]:
    engine = service.engine
    running = {one.place: one for one in service.worker.scheduler.running}
    nbytes = {slot.id: slot.nbytes for slot in engine.slots}
    places = max([service.worker.scheduler.parallel, *(place + 1 for place in running)])
    slots = []
    for place in range(places):
        slot: dict[str, Any] = {
            "model": service.model_name,
            "n_ctx": engine.context_limit,
            "speculative": engine.model.why_no_drafts is None,
            "batched": service.why_in_turns is None,
            "is_processing": place in running,
        }
        if place in running:
            cache, does = running[place].slot, _described(running[place])
            most, generated = does["max_tokens"], does["generated_tokens"]
            left = -1 if most is None else most - generated
            decoding = running[place].decoding
            slot["batched"] &= decoding is None or not decoding.takes_turns
            slot |= {
                "id_task": does["id"],
                "n_prompt_tokens": does["prompt_tokens"],
                "n_prompt_tokens_processed": does["computed_tokens"],
                "n_prompt_tokens_cache": does["cached_tokens"],
                "next_token": [{"has_next_token": True, "n_remain": left, "n_decoded": generated}],
                "kind": does["kind"],
                "phase": does["phase"],
                "n_bytes": 0 if cache is None else nbytes.get(cache.id, 0),
            }
        slots.append(slot)
    return slots


def _described(sequence: Sequence) -> dict[str, Any]:
    stats = sequence.stats
    return {
        "id": sequence.arrival,
        "kind": sequence.kind,
        "phase": "waiting for memory" if sequence.lacks_memory else sequence.phase,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "computed_tokens": sequence.computed_tokens,
        "generated_tokens": stats.generated_tokens,
        "max_tokens": sequence.options.max_tokens,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
    }


def _metrics(pool: Pool, _: Body) -> Response:
    return Answer(
        "\n".join(_prometheus_lines(pool)) + "\n",
        headers={"Process-Start-Time-Unix": str(int(_BEGUN))},
        media_type="text/plain; version=0.0.4",
    )


def _prometheus_lines(pool: Pool) -> Iterator[str]:
    metrics, services = pool.metrics, pool.services
    schedulers = [service.worker.scheduler for service in services]
    rounds = sum(scheduler.rounds for scheduler in schedulers)
    advanced = sum(scheduler.advanced for scheduler in schedulers)
    sums, computed = metrics.sums, metrics.computed_tokens
    computed_per_s = computed / sums.prefill_s if sums.prefill_s else 0.0
    entries: tuple[tuple[str, str, str, float], ...] = (
        ("counter", "prompt_tokens_total", "Prompt tokens computed, not cached.", computed),
        ("counter", "prompt_seconds_total", "Seconds spent on prompts.", sums.prefill_s),
        ("counter", "prompt_tokens_cached_total", "Cached prompt tokens.", sums.cached_tokens),
        ("counter", "queue_seconds_total", "Seconds that requests waited.", sums.queue_s),
        ("counter", "tokens_predicted_total", "Tokens generated.", sums.generated_tokens),
        ("counter", "tokens_predicted_seconds_total",
         "Seconds of generating, summed over concurrent requests.", sums.decode_s),
        ("counter", "n_decode_total", "Forward passes while generating.",
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
        ("gauge", "requests_processing", "Requests being worked on.",
         sum(service.processing for service in services)),
        ("gauge", "requests_deferred", "Requests waiting.", pool.waiting),
        ("gauge", "models_loaded", "Models in memory.", len(services)),
        ("counter", "models_loaded_total", "How often a model was loaded.", pool.loads),
        ("counter", "models_unloaded_total", "How often a model was unloaded.", pool.unloads),
    )  # fmt: skip
    for kind, name, meaning, value in entries:
        yield from _comments(name, meaning, kind)
        yield f"{_PREFIX}{name} {value:.12g}"
    for name, meaning, read in _BY_KIND:
        yield from _comments(name, f"{meaning}, by kind of request.", "counter")
        for kind_, part in metrics.by_kind.items():
            yield f'{_PREFIX}{name}{{kind="{kind_}"}} {getattr(part, read):.12g}'
    for name, meaning, found in (
        ("draft_tokens_by_origin_total", "Tokens drafted", sums.drafted_by_origin),
        ("accepted_tokens_by_origin_total", "Draft tokens accepted", sums.accepted_by_origin),
    ):
        yield from _comments(name, f"{meaning}, by where they come from.", "counter")
        for origin, count in found.items():
            yield f'{_PREFIX}{name}{{origin="{origin}"}} {count}'
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    yield from _comments(name, "Draft tokens accepted, by their position in the draft.", "counter")
    for position, count in enumerate(sums.accepted_by_position):
        yield f'{_PREFIX}{name}{{position="{position}"}} {count}'


def _comments(name: str, meaning: str, kind: str) -> tuple[str, str]:
    return f"# HELP {_PREFIX}{name} {meaning}", f"# TYPE {_PREFIX}{name} {kind}"


def _status(pool: Pool, _: Body) -> Response:
    """The figures contain no text of users."""
    services, latest = pool.services, pool.latest
    found = {
        "version": __version__,
        "uptime_s": round(time() - _BEGUN, 3),
        "queue": {
            "processing": sum(service.processing for service in services),
            "waiting": pool.waiting,
            "limit": pool.settings.queue,
            "parallel": max(
                (service.worker.scheduler.parallel for service in services),
                default=pool.settings.parallel,
            ),
        },
        "models": [
            {
                "name": seat.model.name,
                "bytes": seat.nbytes,
                "state": "leaving" if seat.leaving else "ready" if seat.service else "loading",
                "requests": seat.users,
            }
            for seat in pool.seats
        ],
        "sequences": [_described(job.sequence) for one in services for job in one.active],
        "answers": pool.metrics.answers,
        "cancelled": pool.metrics.cancelled,
        "sums": _sums(pool),
    }
    if latest is None or latest.service is None:
        return JSONAnswer({"state": "loading" if pool.loading else "idle"} | found)
    return JSONAnswer({"state": "ready"} | found | _engine_status(latest.service))


ENDPOINTS: Final = (
    PoolEndpoint("GET", "/health", _health, is_open=True),
    PoolEndpoint("GET", "/v1/health", _health, is_open=True),
    PoolEndpoint("GET", "/slots", _slots),
    PoolEndpoint("GET", "/metrics", _metrics),
)
STATUS: Final = PoolEndpoint("GET", "/status.json", _status)


def _engine_status(service: Service) -> dict[str, Any]:
    engine = service.engine
    model, backend, now = engine.model, engine.backend, time()
    curve = engine.costs.measured
    return {
        "model": {
            "name": model.name,
            "context": engine.context_limit,
            "parameters": model.parameter_count,
            "bytes": model.parameter_bytes,
            "layout": model.layout,
        },
        "device": {
            "kind": backend.device,
            "chip": backend.chip,
            "blas": backend.blas,
            "threads": backend.current_threads,
        },
        "why_in_turns": service.why_in_turns,
        "notices": engine.notices,
        "caches": [
            {
                "id": slot.id,
                "tokens": slot.tokens,
                "capacity": slot.capacity,
                "bytes": slot.nbytes,
                "busy": slot.busy,
                "idle_s": 0.0 if slot.busy else round(max(now - slot.last_used, 0.0), 1),
            }
            for slot in engine.slots
        ],
        "costs": None if curve is None else _costs(curve),
        "costs_missing": engine.costs_missing,
    }


def _sums(pool: Pool) -> dict[str, Any]:
    sums = Stats()
    sums.include(pool.metrics.sums)
    for job in (job for service in pool.services for job in service.active):
        if job.events.last:
            sums.include(job.events.last.stats)
    tokens = {"prompt_tokens": sums.prompt_tokens, "generated_tokens": sums.generated_tokens}
    return tokens | sums.as_dict()


def _costs(curve: CostCurve) -> list[dict[str, Any]]:
    return [
        {
            "context": level.context,
            "step_ms": round(curve.decode_s(level.context) * 1000, 4),
            "rounds_ms": [[size, round(cost * 1000, 4)] for size, cost in level.verify_s],
        }
        for level in curve.levels
    ]
