"""StreamedResponse: chunks sent as they come, with a proper status if there are none.

The first chunk is awaited before the status goes out, so that whatever fails before it is an
error of the contract; what fails later is told within the stream.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from akunu_py.server.compact_json import compact_json
from akunu_py.server.errors import Fault, fault_of, note_fault

EVENT_STREAM: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"


def sse(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + compact_json(value) + b"\n\n"


def json_line(value: Any) -> bytes:
    """One line of newline-delimited JSON."""
    return compact_json(value) + b"\n"


class StreamedResponse(Response):
    """Sends what a generator yields.

    Args:
        chunks: of bytes; closed when the response has been sent or nobody reads it any more.
        media_type: of the whole.
        error_chunk: what tells a client about a fault after the first chunk.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        *,
        error_chunk: Callable[[Fault], bytes],
    ) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._error_chunk = error_chunk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            first = await anext(chunks, b"")
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            await _send_chunk(send, first)
            try:
                async for chunk in chunks:
                    await _send_chunk(send, chunk)
            except Exception as error:
                fault = fault_of(error)
                note_fault(scope, fault)
                await _send_chunk(send, self._error_chunk(fault))
            await send({"type": "http.response.body", "body": b""})


async def _send_chunk(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})
