"""The tools that a chat may call, and whether it may, must or must not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from akunu_py.server.body import Body
from akunu_py.server.messages import read_offered_tools


@dataclass(frozen=True)
class Tools:
    """What may be called.

    Attributes:
        offered: the tools, in OpenAI's form; none if none may be called.
        must_call: whether the answer has to be a call.
        one_call: whether it ends after the first one.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    one_call: bool = False


def read_tools(body: Body, *, model_has_tools: bool) -> Tools:
    """`tools`, `tool_choice` and `parallel_tool_calls`.

    A model whose template has no tools answers without them where it is free to; it cannot be made
    to call one.

    Raises:
        BodyError: if a field cannot be served.
    """
    for name in ("functions", "function_call"):
        if body.has(name):
            body.refuse(name, "is out of use; send `tools` and `tool_choice` instead")
    offered = read_offered_tools(body)
    wanted = _read_choice(body)
    if wanted.must_call:
        offered = _named(body, offered, wanted.name) if wanted.name else offered
        if not offered:
            body.refuse("tool_choice", "needs `tools` to choose from")
        if not model_has_tools:
            body.refuse("tool_choice", "cannot be served: this model's chat template has no tools")
    if not wanted.may_call or not model_has_tools:
        return Tools()
    parallel = body.flag("parallel_tool_calls", default=True)
    return Tools(tuple(offered), wanted.must_call and bool(offered), not parallel)


@dataclass(frozen=True)
class _Choice:
    may_call: bool = True
    must_call: bool = False
    name: str | None = None


def _read_choice(body: Body) -> _Choice:
    given = body.any("tool_choice")
    if isinstance(given, dict):
        choice = body.object("tool_choice")
        function = choice.object("function") if choice.has("function") else choice
        name = function.text("name", default="")
        if not name:
            choice.refuse("function.name", "is missing")
        return _Choice(must_call=True, name=name)
    word = body.text("tool_choice", default="auto")
    if word not in ("auto", "none", "required"):
        body.refuse("tool_choice", "must be auto, none, required, or name a function")
    return _Choice(may_call=word != "none", must_call=word == "required")


def _named(body: Body, offered: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    found = [tool for tool in offered if tool["function"]["name"] == name]
    if not found:
        body.refuse("tool_choice", "names a function that is not among `tools`")
    return found
