"""HttpServer: uvicorn on a socket that listens already, ended by a call instead of a signal."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

_SECONDS_TO_FINISH: Final = 1
_SECONDS_OF_SILENCE: Final = 75
"""Between two requests of a connection, as in nginx. Clients throw theirs away sooner; one that the
server closes first may be closing while the next request is written to it."""


class HttpServer:
    """Serves one application.

    Args:
        app: of the ASGI kind.
    """

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
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


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs the loop."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
