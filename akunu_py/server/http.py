"""HttpServer: uvicorn on a socket that listens already, stopped by a call instead of a signal.

Run it on uvloop's event loop: every token wakes the loop, which takes asyncio's own loop several
times as long.
"""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_SECONDS_TO_FINISH: Final = 1
_SECONDS_OF_SILENCE: Final = 75
"""Seconds between two requests of a connection, as in nginx. Most clients close idle connections
sooner: if the server closes first, a client may be writing its next request at that moment."""
_HEAD_BYTES: Final = 64 << 10
"""The size of a request's head, beyond its first packet."""


class HttpServer:
    """Serves one application."""

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
            timeout_keep_alive=_SECONDS_OF_SILENCE,
            timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        )
        self._server = _Uvicorn(config)

    async def serve(self, listener: socket.socket) -> None:
        """Serves until it is stopped; then responses have one second to finish."""
        # Without this option a body waits up to 40 ms for the acknowledgement of its head.
        # Connections inherit it, and asyncio sets it only on sockets with an explicit protocol.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._server.serve([listener])

    def stop(self) -> None:
        """Makes `serve` return."""
        self._server.should_exit = True


class _Protocol(HttpToolsProtocol):
    """Refuses a head without an end, because the parser would keep all of it in memory.

    Tells every request of a connection that the client has left; uvicorn tells only the latest one.
    """

    _in_head = False
    _head_bytes = 0
    _cycles: tuple[RequestResponseCycle, ...] = ()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        if self.cycle is not None and self.cycle not in self._cycles:
            unfinished = (cycle for cycle in self._cycles if not cycle.response_complete)
            self._cycles = (*unfinished, self.cycle)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._cycles:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        goes_on = self._in_head
        super().data_received(data)
        if goes_on and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
