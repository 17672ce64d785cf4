"""Contract: what one family of clients calls, and how it is told about errors.

A contract is made of endpoints: functions of a `Call`, which has the service and the body. They
know neither ASGI nor disconnects; see `app.py`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.errors import Fault
from akunu_py.server.service import Service
from akunu_py.server.settings import ServerSettings


@dataclass(frozen=True)
class Call:
    """One request, as an endpoint sees it.

    Attributes:
        service: answers jobs.
        settings: of the server.
        body: the request's JSON object; empty for a GET.
        request: the rest of it.
    """

    service: Service
    settings: ServerSettings
    body: Body
    request: Request


Answer = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True)
class Endpoint:
    """A path and what answers it.

    Attributes:
        method: `GET` or `POST`.
        path: as Starlette spells it.
        answer: makes the response, or raises an error that becomes the contract's.
        is_open: whether it answers without the API key.
        is_polled: whether it is asked all the time, and no line of the log is worth it.
    """

    method: str
    path: str
    answer: Answer
    is_open: bool = False
    is_polled: bool = False


@dataclass(frozen=True)
class Contract:
    """What one family of clients relies on.

    Attributes:
        name: of the family.
        endpoints: what it calls.
        error_body: the JSON object that tells about a fault.
        prefixes: of paths whose errors are this contract's even where nothing answers them.
    """

    name: str
    endpoints: tuple[Endpoint, ...]
    error_body: Callable[[Fault], dict[str, Any]]
    prefixes: tuple[str, ...] = ()
