"""ResponseStore: the latest responses, which clients may continue, show, list and delete.

They are kept in memory only, with the items and messages that led to them.
"""

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from starlette.responses import Response

from akunu_py.server.body import Body
from akunu_py.server.contract import ApiRequest
from akunu_py.server.errors import NotFoundError
from akunu_py.server.fields import Message
from akunu_py.server.wire import CompactJSONResponse, compact_json

_STORED_BYTES: Final = 64 << 20
_MOST_LISTED: Final = 100
_LIMIT: Final = re.compile(r"[0-9]{1,3}")

Item = dict[str, Any]


@dataclass(frozen=True)
class History:
    """A conversation, as the items that clients sent and got, and as messages."""

    items: tuple[Item, ...] = ()
    messages: tuple[Message, ...] = ()

    def followed_by(self, items: list[Item], messages: list[Message]) -> "History":
        """A longer conversation."""
        return History((*self.items, *items), (*self.messages, *messages))


@dataclass(frozen=True)
class Stored:
    """A response, the items that led to it, and the conversation that a next one continues."""

    response: dict[str, Any]
    input: list[Item]
    history: History


class ResponseStore:
    """The latest responses; beyond a number of bytes the oldest are dropped.

    They are kept as JSON, since objects may take thirty times the memory.
    """

    def __init__(self, most: int = _STORED_BYTES) -> None:
        self._most = most
        self._nbytes = 0
        self._responses: OrderedDict[str, bytes] = OrderedDict()

    def add(self, response: dict[str, Any], history: History, answer: Message) -> None:
        """Keeps a response, which answers a conversation, if it is not too long on its own."""
        whole = history.followed_by(response["output"], [answer])
        kept = compact_json([response, len(history.items), whole.items, whole.messages])
        self._responses[response["id"]] = kept
        self._nbytes += len(kept)
        while self._nbytes > self._most:
            self._nbytes -= len(self._responses.popitem(last=False)[1])

    def get(self, name: str) -> Stored:
        """A response.

        Raises:
            NotFoundError: if there is none with that id.
        """
        response, sent, items, messages = json.loads(self._find(name))
        return Stored(response, items[:sent], History(tuple(items), tuple(messages)))

    def remove(self, name: str) -> None:
        """Forgets a response; see `get`."""
        self._nbytes -= len(self._find(name))
        del self._responses[name]

    def _find(self, name: str) -> bytes:
        if name not in self._responses:
            raise NotFoundError(f"There is no response {name[:80]!r}; it was not kept, or deleted.")
        return self._responses[name]


def input_items(body: Body) -> list[Item]:
    """The items of `input`, each with an id, and texts as lists of parts."""
    given = body.any("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_item(item) for item in given if isinstance(item, dict)]


def _item(item: Item) -> Item:
    named: Item = {"id": f"item_{uuid4().hex}", "type": "message"} | item
    if named["type"] == "message" and isinstance(item.get("content"), str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        part = {"type": kind, "text": item["content"]}
        named["content"] = [part | ({"annotations": []} if kind == "output_text" else {})]
    return named


def show_response(request: ApiRequest) -> Response:
    """`GET /v1/responses/ID`."""
    return CompactJSONResponse(request.responses.get(request.path_params["id"]).response)


def list_input_items(request: ApiRequest) -> Response:
    """`GET /v1/responses/ID/input_items`: what led to a response, the latest first."""
    query = Body(request.query, request.settings.limits)
    items = request.responses.get(request.path_params["id"]).input
    order, after = query.text("order", default="desc"), query.text("after", default=None)
    limit = query.text("limit", default="20")
    if order not in ("asc", "desc"):
        query.refuse("order", "must be asc or desc")
    if not _LIMIT.fullmatch(limit) or not 1 <= int(limit) <= _MOST_LISTED:
        query.refuse("limit", f"must be from 1 to {_MOST_LISTED}")
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        query.refuse("after", "names no item of this response")
    start = 0 if after is None else ids.index(after) + 1
    listed = items[start : start + int(limit)]
    return CompactJSONResponse(
        {
            "object": "list",
            "data": listed,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
            "has_more": start + len(listed) < len(items),
        }
    )


def delete_response(request: ApiRequest) -> Response:
    """`DELETE /v1/responses/ID`."""
    name = request.path_params["id"]
    request.responses.remove(name)
    return CompactJSONResponse({"id": name, "object": "response", "deleted": True})
