"""Gate: who may talk to a server on one's own machine.

Any web page can send requests to localhost. So the name that the request came by must be the
server's (a page whose domain is rebound to 127.0.0.1 has its own name there), and the page that
sent it, if one did, must be the server's own or allowed by name.
"""

import hmac
import ipaddress
import socket
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from akunu_py.server.errors import ApiKeyError, ForbiddenError
from akunu_py.server.settings import ServerSettings

_BEARER: Final = "bearer "


class Gate:
    """Lets requests pass that come by the server's name, from no foreign page, with the key.

    Args:
        app: what lies behind it.
        settings: have the key, the origins and the names.
        open_paths: need no key.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, open_paths: Collection[str]) -> None:
        self._app = app
        self._key = settings.api_key
        self._origins = settings.origins
        self._open_paths = open_paths
        self._names = {name.lower() for name in (settings.host, *settings.hosts)} | _own_names()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            self._check_host(headers.get("host", ""))
            self._check_origin(headers.get("origin"), headers.get("host", ""))
            if scope["path"] not in self._open_paths:
                self._check_key(headers)
        await self._app(scope, receive, send)

    def _check_host(self, host: str) -> None:
        name = _host_name(host)
        if name not in self._names and not name.endswith(".localhost") and not _is_address(name):
            raise ForbiddenError("This server is not known by that Host; see --allow-host.")

    def _check_origin(self, origin: str | None, host: str) -> None:
        if origin is None or origin in self._origins or "*" in self._origins:
            return
        if origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            raise ForbiddenError("Web pages of that Origin may not use this server; see --cors.")

    def _check_key(self, headers: Headers) -> None:
        if self._key is None:
            return
        given = headers.get("authorization", "")
        given = given[len(_BEARER) :] if given.lower().startswith(_BEARER) else ""
        given = given or headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise ApiKeyError("The API key is missing or wrong; send it as a Bearer token.")


def _host_name(host: str) -> str:
    """The name in a Host header, without the port; empty if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Whether a name is an IP address, which no domain can be rebound under."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    """What this machine is called."""
    name = socket.gethostname().lower()
    return {"localhost", name, f"{name}.local"}
