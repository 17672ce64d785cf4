"""HttpServer: uvicorn on a socket that listens already, ended by a call instead of a signal.

To be run on uvloop's event loop: every token wakes it, which takes asyncio's own several times as
long.
"""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_SECONDS_TO_FINISH: Final = 1
_SECONDS_OF_SILENCE: Final = 75
"""Between two requests of a connection, as in nginx. Clients throw theirs away sooner; one that the
server closes first may be closing while the next request is written to it."""
_HEAD_BYTES: Final = 64 << 10
"""Of a request's head, beyond what came with its first bytes."""


class HttpServer:
    """Serves one application.

    Args:
        app: of the ASGI kind.
    """

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
        """Answers until it is stopped; then responses under way have a second to finish."""
        # What is sent goes out at once: a body that waits for its head to be acknowledged is 40 ms
        # late. Connections inherit it, and asyncio sees to it only where a protocol was named.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._server.serve([listener])

    def stop(self) -> None:
        """Makes `serve` return."""
        self._server.should_exit = True


class _Protocol(HttpToolsProtocol):
    """Refuses a head without an end: its parser keeps all of it."""

    _in_head = False
    _head_bytes = 0

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        goes_on = self._in_head
        super().data_received(data)
        if goes_on and self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _HEAD_BYTES:
                self.send_400_response("The head of the request is too long.")


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs the loop."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
