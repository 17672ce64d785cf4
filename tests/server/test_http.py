"""The server's own end of a connection."""

import asyncio
import socket

from starlette.applications import Starlette

from akunu_py.server.http import HttpServer


def test_nothing_sent_waits_for_what_was_sent_before() -> None:
    server = HttpServer(Starlette())
    with socket.create_server(("127.0.0.1", 0)) as listener, listener.dup() as kept:
        server.stop()
        asyncio.run(server.serve(listener))
        with socket.create_connection(kept.getsockname()[:2]):
            connection, _ = kept.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
