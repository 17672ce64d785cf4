"""What Ollama answers: objects as the text grows, a line each, and a last one with the figures."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Final

from starlette.responses import Response

from akunu_py.request import Event
from akunu_py.server.compact_json import CompactJSONResponse
from akunu_py.server.contract import Call
from akunu_py.server.contracts.ollama.errors import error_body
from akunu_py.server.contracts.ollama.names import served_name
from akunu_py.server.finish_reasons import FINISH_REASONS
from akunu_py.server.job import Job
from akunu_py.server.streaming import NDJSON, StreamedResponse, json_line
from akunu_py.stats import Finish, Stats

_NANOSECONDS: Final = 1_000_000_000


class Reply(ABC):
    """One answer in the making; where its text goes is the endpoint's own.

    Args:
        call: what asked for it; with `show_drafts`, which Ollama does not know, every object has
            its text in `pieces` as well, each with whether it was drafted.

    Attributes:
        tokens: what was generated.
    """

    def __init__(self, call: Call) -> None:
        self.tokens: list[int] = []
        self._begun = perf_counter()
        self._name = served_name(call.service.engine)
        self._shows_drafts = call.body.flag("show_drafts", default=False)
        self._pieces: list[dict[str, Any]] = []
        self._finish = Finish.CANCELLED
        self._stats = Stats()

    @abstractmethod
    def tell(self, text: str, *, ends: bool) -> dict[str, Any]:
        """The fields that tell the next text of a stream; none if nothing of it is certain yet."""

    @abstractmethod
    def tell_all(self, text: str) -> dict[str, Any]:
        """The fields that tell a whole answer, or an empty one."""

    def close(self) -> dict[str, Any]:
        """What else belongs into the last object."""
        return {}

    def add(self, event: Event) -> None:
        """Takes the next event."""
        self._pieces += _pieces(event)
        self.tokens.extend(event.tokens)
        self._stats = event.stats
        self._finish = event.finish_reason or self._finish

    def part(self, event: Event) -> dict[str, Any] | None:
        """The streamed object for an event, if it has anything to tell."""
        told = self.tell(event.text, ends=event.finish_reason is not None)
        pieces = _pieces(event) if self._shows_drafts else []
        if not told and not pieces:
            return None
        shown = {"pieces": pieces} if self._shows_drafts else {}
        return self._head() | (told or self.tell_all("")) | {"done": False} | shown

    def last(self) -> dict[str, Any]:
        """What ends a stream."""
        return self._head() | self.tell_all("") | self._figures() | self.close()

    def whole(self) -> dict[str, Any]:
        """The answer at once."""
        shown = {"pieces": self._pieces} if self._shows_drafts else {}
        text = "".join(piece["text"] for piece in self._pieces)
        return self._head() | self.tell_all(text) | shown | self._figures() | self.close()

    def loaded(self) -> dict[str, Any]:
        """The answer to a request that only wants the model to be there."""
        return self._head() | self.tell_all("") | {"done": True, "done_reason": "load"}

    def _head(self) -> dict[str, Any]:
        return {"model": self._name, "created_at": timestamp(datetime.now(UTC))}

    def _figures(self) -> dict[str, Any]:
        stats = self._stats
        figures = {
            "done": True,
            "done_reason": FINISH_REASONS[self._finish],
            "total_duration": _nanoseconds(perf_counter() - self._begun),
            "load_duration": 0,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prefill_s),
            "eval_count": stats.generated_tokens,
            "eval_duration": _nanoseconds(stats.decode_s),
        }
        if self._shows_drafts:
            figures |= {
                "prompt_cached_count": stats.cached_tokens,
                "forward_count": stats.target_forwards,
                "draft_count": stats.drafted,
                "draft_accepted_count": stats.accepted,
            }
        return figures


async def respond(call: Call, job: Job, reply: Reply) -> Response:
    """Answers a job, streamed unless `stream` is false."""
    if call.body.flag("stream", default=True):
        return StreamedResponse(
            _stream(call, job, reply),
            NDJSON,
            error_chunk=lambda fault: json_line(error_body(fault)),
        )
    for event in await call.service.complete(job):
        reply.add(event)
    return CompactJSONResponse(reply.whole())


async def _stream(call: Call, job: Job, reply: Reply) -> AsyncGenerator[bytes, None]:
    async with aclosing(call.service.stream(job)) as events:
        async for event in events:
            reply.add(event)
            part = reply.part(event)
            if part is not None:
                yield json_line(part)
    yield json_line(reply.last())


def timestamp(moment: datetime) -> str:
    """A moment as Go writes it: RFC 3339, in UTC."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _pieces(event: Event) -> list[dict[str, Any]]:
    return [{"text": piece.text, "drafted": piece.drafted} for piece in event.pieces if piece.text]


def _nanoseconds(seconds: float) -> int:
    return round(seconds * _NANOSECONDS)
