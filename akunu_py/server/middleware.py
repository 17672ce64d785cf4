"""The middleware for every request: a log line, errors as responses, access control, disconnects.

Access control matters because any web page can send requests to localhost. So the Host header must
name this server (a page whose domain is rebound to 127.0.0.1 sends its own name), and the page that
sent the request, if any, must come from this machine or be allowed by name. Desktop applications
have schemes that no web page has.
"""

import asyncio
import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from akunu_py.server.errors import NOTED_ERROR, RETRY, ApiError, api_error_of, noted_error
from akunu_py.server.settings import ServerSettings
from akunu_py.server.wire import STATUS, JSONAnswer

logger = logging.getLogger("akunu_py.server")

BODY: Final = "akunu_py.body"
"""The key in a request's scope for its body, which `DisconnectMiddleware` has read."""

_CLIENT_LEFT: Final = 499
"""The status in the log if none was sent, as in nginx."""
RELEASE: Final = "akunu_py.release"
"""The key in a request's scope for a function to call with the number of bytes kept of its body."""
MODEL: Final = "akunu_py.model"
"""The key in a request's scope for the name of its model."""
_HELD: Final = "akunu_py.held"
_POLLED: Final = "/status.json"
"""The status page requests this all the time, so it is logged only at level DEBUG."""
_BEARER: Final = "bearer "
_HARMLESS: Final = ("GET", "HEAD", "OPTIONS")
_PRIVATE: Final = (".localhost", ".local", ".internal")
"""Nobody can register such a name, so no page can be rebound to one; containers reach their host as
`host.docker.internal`, and other machines of a network as `NAME.local`. As in Ollama."""
_ORIGINS: Final = (
    r"(app|file|tauri|vscode-webview|vscode-file)://.*"
    r"|https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:\d+)?"
)
"""The origins of desktop applications, and of web pages that this machine serves, as in Ollama."""


class RequestLog:
    """Turns errors into responses, unless a response has begun, and logs a line for each request:
    method, path, status, duration, the model, and why it was refused.

    The line has no content of the request, and no client data from the path: `shown` turns that
    into `/v1/responses/{id:path}`. The application leaves the status in the scope: if this class
    wrapped `send`, every streamed token would pass through the wrapper. `error_form` returns, for a
    path, the function that makes the JSON object for an error.
    """

    def __init__(
        self,
        app: ASGIApp,
        error_form: Callable[[str], Callable[[ApiError], dict[str, Any]]],
        shown: Callable[[str], str],
    ) -> None:
        self._app = app
        self._error_form = error_form
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = perf_counter()
        try:
            error = await self._run(scope, receive, send)
            if error is not None:
                body = self._error_form(scope["path"])(error)
                await JSONAnswer(body, error.status, error.headers)(scope, receive, send)
        finally:
            took_ms = (perf_counter() - begun) * 1000
            path, status = ascii(self._shown(scope["path"]))[1:-1], scope.get(STATUS, _CLIENT_LEFT)
            why = f", {ascii(scope[MODEL])[1:-1]}" if MODEL in scope else ""
            why += f": {ascii(scope[NOTED_ERROR])[1:-1]}" if NOTED_ERROR in scope else ""
            level = logging.INFO
            if scope["path"] == _POLLED and status in (HTTPStatus.OK, _CLIENT_LEFT):
                level = logging.DEBUG
            logger.log(level, "%s %s %d %.1f ms%s", scope["method"], path, status, took_ms, why)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> ApiError | None:
        """Runs the application; returns its error if an error response can still be sent."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            if STATUS in scope:
                api_error_of(error)  # for the log
                return None
            return noted_error(scope, error)
        return None


class _Pages(CORSMiddleware):
    """Logs the requests that it refuses itself; the inner `RequestLog` logs the others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code != HTTPStatus.OK:
            why = bytes(response.body).decode()
            logger.info("OPTIONS of a page %d: %s", response.status_code, why)
        return response


def allow_pages(app: ASGIApp, origins: Collection[str]) -> ASGIApp:
    """Tells browsers which pages may read answers: desktop applications, pages of this machine, and
    the `origins`."""
    return _Pages(
        app,
        allow_origins=origins,
        allow_origin_regex=_ORIGINS,
        allow_methods=("GET", "POST", "DELETE", "OPTIONS"),
        allow_headers=("*",),  # libraries send many headers, and more with each version
        allow_private_network=True,  # the user allowed these pages
    )


class AccessMiddleware:
    """Refuses requests with a foreign Host or Origin, and requests without the API key except to
    the `open_paths`. A request to one of the `loading_paths` may load a model."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        open_paths: Collection[str],
        loading_paths: Collection[str],
    ) -> None:
        self._app = app
        self._key = settings.key
        self._origins = settings.origins
        self._open_paths = open_paths
        self._loading_paths = loading_paths
        own = socket.gethostname()
        names = ("localhost", own, *settings.host.split(","), *settings.hosts)
        self._names = {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        self._check_host(host)
        self._check_origin(headers.get("origin"), host)
        is_foreign = headers.get("sec-fetch-site") == "cross-site" and "origin" not in headers
        is_harmless = scope["method"] in _HARMLESS and scope["path"] not in self._loading_paths
        if is_foreign and not is_harmless:  # a browser that hides the page
            raise _forbidden("Web pages without an Origin header may not use this server.")
        if self._key is not None and scope["path"] not in self._open_paths:
            self._check_key(headers, self._key)
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = ""
        with suppress(ValueError):  # it is malformed
            address = urlsplit(f"//{host}")
            name = "" if "@" in host else (address.hostname or "").rstrip(".")
        if name in self._names or name.endswith(_PRIVATE):
            return
        try:
            ipaddress.ip_address(name)  # no domain can be rebound to pass as one
        except ValueError:
            sentence = "This server does not have this Host name; see --allow-host."
            raise _forbidden(sentence) from None

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or origin in self._origins or "*" in self._origins:
            return
        if re.fullmatch(_ORIGINS, origin):
            return
        if origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise _forbidden("Web pages of this Origin may not use this server; see --cors.")

    def _check_key(self, headers: Headers, key: str) -> None:
        given = headers.get("authorization", "")
        given = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
        given = given or headers.get("x-api-key", "")
        # Headers are decoded as Latin-1; clients that send other letters use UTF-8.
        sent, own = given.encode("latin-1"), key.encode(errors="surrogateescape")
        if not hmac.compare_digest(sent, own):
            raise ApiError(
                HTTPStatus.UNAUTHORIZED,
                "The API key is missing or wrong; send it as a Bearer token.",
                "authentication_error",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _forbidden(sentence: str) -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, sentence, "permission_error")


class DisconnectMiddleware:
    """Reads the body into the scope, then runs the application until the client disconnects.

    Cancelling it closes the iteration over the events, which cancels the jobs on the engine's
    thread. A body of too many bytes is refused, before it is read if its size is declared.

    All bodies together have a limit. Incomplete ones share half of it, and the largest of them is
    dropped first. A complete body counts until it is read, and then what is kept of it counts.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._body_bytes = settings.body_bytes
        self._most_held = settings.held_bytes
        self._held_bytes = 0
        self._unfinished: dict[asyncio.Timeout, int] = {}  # their bytes
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._release(scope, 0)  # before the client can ask again
            await send(message)

        try:
            body = await self._read(scope, receive)
            if body is not None:
                scope[BODY], scope[RELEASE] = body, partial(self._release, scope)
                await self._run(scope, receive, answer)
        finally:
            scope.pop(RELEASE, None)
            self._held_bytes -= scope.pop(_HELD, 0)

    def _release(self, scope: Scope, kept: int) -> None:
        held = scope[_HELD]
        scope[_HELD] = min(held, kept)
        self._held_bytes -= held - scope[_HELD]

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._app(scope, _nothing_more, send))
        left = asyncio.create_task(_disconnect(receive))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            left.cancel()
            await asyncio.gather(work, left, return_exceptions=True)
        try:
            if work.cancelled():
                scope.setdefault(NOTED_ERROR, "the client disconnected")
            else:
                work.result()
        finally:
            del work  # its traceback refers to this frame, and so to the request

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client disconnected before its end."""
        self._check_size(int(Headers(scope=scope).get("content-length", "0")))
        parts: list[bytes] = []
        size, more, share = 0, True, self._most_held // 2
        place = asyncio.timeout(None)
        try:
            async with place:
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
                    size += len(parts[-1])
                    self._check_size(size)
                    if more:
                        self._unfinished[place] = size
                    while len(self._unfinished) > 1 and sum(self._unfinished.values()) > share:
                        largest = max(self._unfinished, key=self._unfinished.__getitem__)
                        del self._unfinished[largest]
                        largest.reschedule(0)
        except TimeoutError:
            sentence = "The body was dropped before its end, because others needed its memory."
            raise ApiError(
                HTTPStatus.REQUEST_TIMEOUT, sentence, headers={"Connection": "close"}
            ) from None
        finally:
            self._unfinished.pop(place, None)
        if self._held_bytes + size > self._most_held - share:
            raise ApiError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "The bodies of waiting requests are too large in total; try again shortly.",
                "rate_limit_error",
                headers=RETRY,
            )
        self._held_bytes += size
        scope[_HELD] = size
        if size:  # one request begins per pass of the event loop; many at a time would stall it
            async with self._turn:
                await asyncio.sleep(0)
        return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > self._body_bytes:
            raise ApiError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"The body is larger than {self._body_bytes} bytes.",
            )


async def _nothing_more() -> Message:
    """The application's `receive`: only `DisconnectMiddleware` learns of a disconnect."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
