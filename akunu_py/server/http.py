"""HttpServer: uvicorn on sockets that already listen; signals are left to the caller.

Run it on uvloop's event loop: every token wakes the loop, and asyncio's own loop takes several
times as long.
"""

import asyncio
import resource
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

SECONDS_TO_SEND: Final = 60
"""Seconds in which a request must arrive: enough for many megabytes over a slow network."""
_SECONDS_TO_FINISH: Final = 1
_SECONDS_OF_SILENCE: Final = 75
"""Seconds between two requests of a connection, as in nginx. Most clients close idle connections
sooner: if the server closes first, a client may be writing its next request at that moment."""
_FRAMING_BYTES: Final = 64 << 10
"""The most bytes of a request besides its body: its head, its trailers, and the sizes of chunks."""
_BODY_PER_FRAMING: Final = 8
"""Another byte is allowed for this many bytes of a body: large bodies may come in small
chunks."""
_DISCARDED_BYTES: Final = 64 << 20
"""Most clients read the answer only after sending the whole body, even if it is refused."""
_PARSED_AT_ONCE: Final = 4 << 10
"""Bytes that are parsed at a time: at most 250 of the shortest requests, which is 5 ms."""
_MAX_PIPELINED: Final = 100
"""The most requests that wait on a connection; few clients send even a second one early."""
_SPARE_DESCRIPTORS: Final = 64
_FEW: Final = 8


class HttpServer(uvicorn.Server):
    """Serves one application on sockets until `should_exit` is set; responses then have one second
    to finish."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            headers=[
                ("X-Content-Type-Options", "nosniff"),
                ("Cross-Origin-Resource-Policy", "same-origin"),
            ],
            timeout_keep_alive=_SECONDS_OF_SILENCE,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        )
        super().__init__(config)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # Without this option, a body waits up to 40 ms for the acknowledgement of its head.
        # Connections inherit it, and asyncio sets it only on sockets with an explicit protocol.
        for listener in sockets or ():
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # More threads gain nothing: each holds the interpreter, and the event loop waits for all.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # the caller handles them


def most_connections() -> int:
    """How many connections the file descriptors allow, besides the files of the process."""
    return max(_FEW, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS)


class _Protocol(HttpToolsProtocol):
    """Bounds the resources that a client can hold: a head or trailers without an end, which the
    parser would keep in memory; tiny chunks; a request that never ends; data after a refused head;
    requests that wait for earlier ones; idle connections. It tells every request of a connection
    that the client has disconnected; uvicorn tells only the latest one."""

    _framing_bytes = _body_bytes = 0
    _discarded_bytes = 0
    _cycles: tuple[RequestResponseCycle, ...] = ()
    _deadline: TimerHandle | None = None
    _unread: TimerHandle
    _waits_since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > most_connections():
            others = (other for other in self.connections if isinstance(other, _Protocol))
            waiting = [other for other in others if other._waits_for_client]
            min(waiting, key=lambda other: other._waits_since).transport.close()

    @property
    def _waits_for_client(self) -> bool:
        cycle = self.cycle
        is_asked = cycle is None or cycle.response_complete or cycle.more_body
        return is_asked or self.flow.write_paused

    def _await_request(self) -> None:
        self._stop_waiting()
        self._waits_since = self.loop.time()
        self._deadline = self.loop.call_later(SECONDS_TO_SEND, self._refuse_slow)

    def _refuse_slow(self) -> None:
        if self.pipeline:  # reading is paused until earlier requests are answered
            self._await_request()
        else:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waits_since = self.loop.time()
        self._unread = self.loop.call_later(SECONDS_TO_SEND, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.cancel()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing for the log: the request is answered as if it had not asked for an upgrade."""

    def on_message_begin(self) -> None:
        self._framing_bytes = 0
        self._await_request()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._stop_waiting()
        super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.cycle is not None and self.cycle not in self._cycles:
            unfinished = (cycle for cycle in self._cycles if not cycle.response_complete)
            self._cycles = (*unfinished, self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), _PARSED_AT_ONCE):
            part, self._body_bytes = data[start : start + _PARSED_AT_ONCE], 0
            super().data_received(part)
            allowed = self._body_bytes + self._body_bytes // _BODY_PER_FRAMING
            self._framing_bytes = max(self._framing_bytes + len(part) - allowed, 0)
            if self.cycle is not None and self.cycle.response_complete:
                self._discarded_bytes += self._body_bytes
            if self._discarded_bytes > _DISCARDED_BYTES:
                self.transport.close()
            if self.transport.is_closing():
                return
            if len(self.pipeline) > _MAX_PIPELINED:
                self.send_400_response("Too many requests are waiting on this connection.")
                return
            if self._framing_bytes > _FRAMING_BYTES:
                self.send_400_response("The headers or chunk sizes of the request are too long.")
                return
