"""`/status`: what the server is doing now, in one object; nothing in it is of a user's text."""

from itertools import zip_longest
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from akunu_py.package import __version__
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.errors import LoadingError
from akunu_py.server.service import Service

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STARTED: Final = monotonic()
_SUMMED: Final = (
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "target_forwards",
    "drafted",
    "accepted",
    "prefill_s",
    "decode_s",
)


async def status(call: Call) -> Response:
    """The figures; while the model loads, those that there are."""
    service = call.service
    found = {
        "version": __version__,
        "uptime_s": round(monotonic() - _STARTED, 3),
        "queue": {
            "processing": service.processing,
            "waiting": service.waiting,
            "limit": call.settings.queue,
        },
        "answers": service.metrics.answers,
        "cancelled": service.metrics.cancelled,
        "sums": _sums(service),
    }
    try:
        engine = service.engine
    except LoadingError:
        return CompactJSONResponse({"state": "loading"} | found)
    return CompactJSONResponse({"state": "ready"} | found | _of_engine(engine))


def _of_engine(engine: "Engine") -> dict[str, Any]:
    model, backend, now = engine.model, engine.backend, time()
    curve = engine.speculation.cost_curve
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
            "threads": backend.threads,
        },
        "notices": engine.notices,
        "caches": [
            {
                "id": slot.id,
                "tokens": slot.tokens,
                "capacity": slot.capacity,
                "bytes": slot.nbytes,
                "idle_s": 0.0 if slot.busy else round(max(now - slot.last_used, 0.0), 1),
            }
            for slot in engine.slots
        ],
        "costs": None if curve is None else _costs(curve),
    }


def _sums(service: Service) -> dict[str, Any]:
    """Sums over all answers, those under way as far as they have come."""
    ended = service.metrics.sums
    parts = [ended, *service.running]
    by_place = zip_longest(*(list(part.accepted_by_position) for part in parts), fillvalue=0)
    sums: dict[str, Any] = {
        name: round(sum(getattr(part, name) for part in parts), 6) for name in _SUMMED
    }
    return sums | {"accepted_by_position": [sum(counts) for counts in by_place]}


def _costs(curve: CostCurve) -> list[dict[str, Any]]:
    """What was measured, in milliseconds, a context each: of a pipelined step, and of rounds by
    the tokens in them."""
    return [
        {
            "context": level.context,
            "step_ms": round(level.decode_s * 1000, 4),
            "rounds_ms": [[size, round(cost * 1000, 4)] for size, cost in level.verify_s],
        }
        for level in curve.levels
    ]
