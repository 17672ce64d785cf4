"""The status page, for people: one HTML file at `/`, and the figures that it polls at `/status`.

The page contains no secret, so it needs no API key; its figures do. Its Content-Security-Policy
allows its own script only, by the digest of what is in the file, and requests to this server only.
"""

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files
from itertools import zip_longest
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse, Response

from akunu_py.package import __version__
from akunu_py.planning.cost_curve import CostCurve
from akunu_py.server.contract import ApiRequest, Contract, Endpoint
from akunu_py.server.errors import LoadingError
from akunu_py.server.llama import error_body
from akunu_py.server.service import Service
from akunu_py.server.wire import CompactJSONResponse

if TYPE_CHECKING:
    from akunu_py.engine import Engine

_STARTED: Final = monotonic()
_SUMMED: Final = {
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "generated_tokens": "generated_tokens",
    "target_calls": "target_forwards",
    "drafted": "drafted",
    "accepted": "accepted",
    "prefill_s": "prefill_s",
    "decode_s": "decode_s",
}
"""The keys of the sums, which clients know, and the statistics behind them."""


def page(_: ApiRequest) -> Response:
    """The page, with its policy for the browser."""
    text, policy = _read()
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


def status(request: ApiRequest) -> Response:
    """The figures; fewer while the model loads. They contain no text of users."""
    service = request.service
    found = {
        "version": __version__,
        "uptime_s": round(monotonic() - _STARTED, 3),
        "queue": {
            "processing": service.processing,
            "waiting": service.waiting,
            "limit": request.settings.queue,
            "parallel": service.scheduler.parallel,
        },
        "sequences": _sequences(service),
        "answers": service.metrics.answers,
        "cancelled": service.metrics.cancelled,
        "sums": _sums(service),
    }
    try:
        engine = service.engine
    except LoadingError:
        return CompactJSONResponse({"state": "loading"} | found)
    turns = {"why_in_turns": service.why_in_turns}
    return CompactJSONResponse({"state": "ready"} | found | turns | _engine_status(engine))


PAGE: Final = Contract(
    name="page",
    endpoints=(
        Endpoint("GET", "/", page, is_open=True),
        Endpoint("GET", "/status", status, is_polled=True),
    ),
    error_body=error_body,
)


@cache
def _read() -> tuple[str, str]:
    """The page and its policy."""
    text = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        "default-src 'none'; "
        f"script-src {_digest(text, 'script')}; "
        f"style-src {_digest(text, 'style')}; "
        "img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _digest(text: str, element: str) -> str:
    """The source expression that allows the only element of this kind."""
    found = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digest = hashlib.sha256(found[0].encode()).digest()
    return f"'sha256-{b64encode(digest).decode()}'"


def _engine_status(engine: "Engine") -> dict[str, Any]:
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
            "threads": backend.current_threads,
        },
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
    }


def _sequences(service: Service) -> list[dict[str, Any]]:
    """What every active request is and has done."""
    return [
        {
            "id": sequence.arrival,
            "kind": job.kind,
            "phase": "waiting for memory" if sequence.lacks_memory else sequence.phase,
            "prompt_tokens": sequence.stats.prompt_tokens,
            "cached_tokens": sequence.stats.cached_tokens,
            "computed_tokens": sequence.computed_tokens,
            "generated_tokens": sequence.stats.generated_tokens,
            "max_tokens": job.options.max_tokens,
            "drafted": sequence.stats.drafted,
            "accepted": sequence.stats.accepted,
        }
        for job, sequence in service.active
    ]


def _sums(service: Service) -> dict[str, Any]:
    """Sums over all requests, including what the active ones have done so far."""
    parts = [service.metrics.sums, *service.running]
    by_position = zip_longest(*(list(part.accepted_by_position) for part in parts), fillvalue=0)
    sums: dict[str, Any] = {
        key: round(sum(getattr(part, name) for part in parts), 6) for key, name in _SUMMED.items()
    }
    return sums | {"accepted_by_position": [sum(counts) for counts in by_position]}


def _costs(curve: CostCurve) -> list[dict[str, Any]]:
    """The measured milliseconds for each context: per pipelined step, and per forward by its
    number of tokens."""
    return [
        {
            "context": level.context,
            "step_ms": round(curve.decode_s(level.context) * 1000, 4),
            "rounds_ms": [[size, round(cost * 1000, 4)] for size, cost in level.verify_s],
        }
        for level in curve.levels
    ]
