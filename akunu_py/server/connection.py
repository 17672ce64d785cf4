"""What every request passes through: a line in the log, its errors put into its contract's JSON,
its body read within bounds, and its job given up when its client leaves.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from time import perf_counter
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from akunu_py.server.errors import BodyTooLargeError, Fault, fault_of, noted_fault

logger = logging.getLogger("akunu_py.server")

_CLIENT_LEFT: Final = 499
"""What the log says, as nginx does, where no status was sent."""


class RequestLog:
    """Logs a line a request: method, path, status, how long it took, and why it was refused; never
    its content.

    Args:
        app: answers.
        polled_paths: are asked all the time, and logged for those who debug alone.
    """

    def __init__(self, app: ASGIApp, polled_paths: Collection[str] = ()) -> None:
        self._app = app
        self._polled_paths = polled_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = perf_counter(), _CLIENT_LEFT

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        finally:
            took_ms = (perf_counter() - begun) * 1000
            path = ascii(scope["path"])[1:-1]
            fault = noted_fault(scope)
            why = "" if fault is None else f": {ascii(fault.message)[1:-1]}"
            level = logging.DEBUG if scope["path"] in self._polled_paths else logging.INFO
            logger.log(level, "%s %s %d %.1f ms%s", scope["method"], path, status, took_ms, why)


class Faults:
    """Turns errors into responses.

    Args:
        app: raises them.
        respond: makes the response to a request.
    """

    def __init__(self, app: ASGIApp, respond: Callable[[Scope, Fault], Response]) -> None:
        self._app = app
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            if scope["type"] != "http":
                raise
            fault = fault_of(error)
            if not started:
                await self._respond(scope, fault)(scope, receive, send)


class Presence:
    """Reads the body, then runs the application for as long as the client is there.

    The application is cancelled when the client leaves, whether or not it is sending; a generator
    that feeds its response is closed, and so the engine hears of it.

    Args:
        app: gets the whole body with its first `receive`.
        body_bytes: the most that is read.
    """

    def __init__(self, app: ASGIApp, body_bytes: int) -> None:
        self._app = app
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            return
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            # Who hears of a disconnect is this class; nobody else ever does.
            return unread.pop() if unread else await asyncio.get_running_loop().create_future()

        work = asyncio.create_task(self._run(scope, replay, send))
        left = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            left.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The body; None if the client left before its end."""
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > self._body_bytes:
                raise BodyTooLargeError(f"The body is larger than {self._body_bytes} bytes.")
            parts.append(part)
        return b"".join(parts)


async def _disconnect(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
