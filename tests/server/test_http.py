"""HttpServer: sockets, heads and bytes that are not HTTP."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest
import uvloop
from starlette.applications import Starlette

from akunu_py.server.http import HttpServer
from tests.server.live import PATIENCE_S

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


def test_sending_does_not_wait_for_acknowledgements() -> None:
    server = HttpServer(Starlette())
    with socket.create_server(("127.0.0.1", 0)) as listener, listener.dup() as kept:
        server.should_exit = True
        uvloop.run(server.serve([listener]))
        with socket.create_connection(kept.getsockname()[:2]):
            connection, _ = kept.accept()
            with connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@contextmanager
def dialled() -> Iterator[socket.socket]:
    """A connection to a server that has nothing to serve."""
    server = HttpServer(Starlette())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
        thread = Thread(target=lambda: uvloop.run(server.serve([listener])))
        thread.start()
        try:
            with socket.create_connection(address, timeout=PATIENCE_S) as connection:
                yield connection
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)


@pytest.mark.parametrize("line", [b"a: b\r\n", b"aaaaaa"])
def test_a_head_without_an_end_is_refused(line: bytes) -> None:
    with dialled() as connection:
        connection.sendall(HEAD)
        with pytest.raises(ConnectionError):
            connection.sendall(line * (4 << 20))


def test_the_head_may_come_in_pieces_and_the_body_may_be_large() -> None:
    with dialled() as connection:
        for line in (HEAD[:5], HEAD[5:], b"Content-Length: 200000\r\n", b"\r\n"):
            connection.sendall(line)
        connection.sendall(b"x" * 200_000)
        assert connection.recv(12) == b"HTTP/1.1 404"


def test_bytes_that_are_not_http_are_refused() -> None:
    with dialled() as connection:
        connection.sendall(b"what is this?\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"
