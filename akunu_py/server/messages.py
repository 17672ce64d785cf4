"""Messages of a conversation and the tools offered in it, as every chat contract sends them."""

import json
from contextlib import suppress
from typing import Any, Final

from akunu_py.server.body import Body

_MOST_MESSAGES: Final = 4096
_MOST_TOOLS: Final = 512


def read_messages(body: Body, name: str = "messages") -> list[dict[str, Any]]:
    """The messages, their content made one text; whatever else they have goes on to the template.

    Raises:
        BodyError: if there are none, or one has no role, or content that is no text.
    """
    messages = body.objects(name, most=_MOST_MESSAGES)
    if not messages:
        body.refuse(name, "must have at least one message")
    return [_message(message) for message in messages]


def read_content(message: Body, name: str = "content") -> str:
    """A message's content: a text, or a list of parts of which all are text."""
    if not isinstance(message.any(name), list):
        return message.text(name, default="")
    texts: list[str] = []
    for part in message.objects(name):
        if part.text("type", default="text") != "text":
            part.refuse("type", "must be text; this model reads nothing else")
        texts.append(part.text("text", default=""))
    return "".join(texts)


def read_offered_tools(body: Body, name: str = "tools") -> list[dict[str, Any]]:
    """The tools, in OpenAI's form, which templates take; none if none are offered.

    Raises:
        BodyError: if one is no function, or has no name.
    """
    return [_tool(tool) for tool in body.objects(name, most=_MOST_TOOLS)]


def _message(message: Body) -> dict[str, Any]:
    role = message.text("role", default=None)
    if role is None:
        message.refuse("role", "is missing")
    kept = {key: message.any(key) for key in message.names() if message.has(key)}
    if message.has("tool_calls"):
        kept["tool_calls"] = [_tool_call(call) for call in message.objects("tool_calls")]
    # Templates know no developers, OpenAI's newer word for who writes the system message.
    role = "system" if role == "developer" else role
    return kept | {"role": role, "content": read_content(message)}


def _tool_call(call: Body) -> dict[str, Any]:
    """An earlier call, its arguments an object, which templates expect, where they are JSON."""
    function = call.object("function")
    arguments = function.any("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    kept = {key: call.any(key) for key in call.names()}
    named = {"name": function.text("name", default=""), "arguments": arguments}
    return kept | {"function": named}


def _tool(tool: Body) -> dict[str, Any]:
    """A tool as the client sent it, once it has what templates and parsers look at."""
    if tool.text("type", default="function") != "function":
        tool.refuse("type", "must be function")
    function = tool.object("function")
    if not function.text("name", default=""):
        tool.refuse("function.name", "is missing")
    function.text("description", default="")
    function.object("parameters").object("properties")
    kept = {name: function.any(name) for name in function.names()}
    return {"type": "function", "function": kept}
