"""The requests of OpenAI's Responses, read into messages and tools as chat completions have them.

Tools that OpenAI's own service runs are left out. Codex's custom tools and its shell are offered as
functions.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from akunu_py.server.body import Body
from akunu_py.server.conversation import ToolChoice, Tools, select_tools
from akunu_py.server.fields import MAX_MESSAGES, MAX_TOOLS, read_offered_tools

_INPUT: Final = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_SHELL: Final = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "timeout_ms": {"type": "integer"},
        "working_directory": {"type": "string"},
    },
    "required": ["command"],
}
SHELL_NAME: Final = "local_shell"
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "summary_text")

Message = dict[str, Any]


def read_tools(body: Body, *, model_has_tools: bool) -> tuple[dict[str, str], Tools]:
    """The kind of each tool by its name, and the tools as functions."""
    kinds: dict[str, str] = {}
    functions: list[dict[str, Any]] = []
    for tool in body.objects("tools", most=MAX_TOOLS):
        kind = tool.text("type", default="function")
        if kind not in ("function", "custom", SHELL_NAME):
            continue  # OpenAI's service would run it; Codex offers such tools to every model
        function = {
            name: tool.any(name) for name in ("name", "description", "strict") if tool.has(name)
        }
        if kind == "function":
            function["parameters"] = tool.any("parameters") or {}
        elif kind == "custom":
            function["parameters"] = _INPUT
            if tool.object("format").has("definition"):
                grammar = tool.object("format").text("definition", default="")
                function["description"] = f"{function.get('description', '')}\n{grammar}"
        else:
            function |= {"name": SHELL_NAME, "parameters": _SHELL,
                         "description": "Runs a command on the user's machine."}  # fmt: skip
        functions.append({"type": "function", "function": function})
        kinds[str(function.get("name"))] = kind
    offered = read_offered_tools(Body({"tools": functions}, body.limits))
    choice = body.any("tool_choice")
    if isinstance(choice, dict):
        given = body.object("tool_choice")
        if given.text("type", default="") == "allowed_tools":
            names = {tool.text("name", default="") for tool in given.objects("tools")}
            offered = [tool for tool in offered if tool["function"]["name"] in names]
            selected = ToolChoice(must_call=given.any("mode") == "required")
        else:
            name = given.text("name", default="") or given.text("type", default="")
            selected = ToolChoice(must_call=True, name=name)
    else:
        word = body.text("tool_choice", default="auto")
        if word not in ("auto", "none", "required"):
            body.refuse("tool_choice", "must be auto, none, required, or name a tool")
        selected = ToolChoice(may_call=word != "none", must_call=word == "required")
    parallel = body.flag("parallel_tool_calls", default=True)
    return kinds, select_tools(
        body, offered, selected, parallel=parallel, model_has_tools=model_has_tools
    )


def read_input(body: Body) -> list[Message]:
    """`input`: a text, or items."""
    body.require("input")
    if not isinstance(body.any("input"), list):
        return [{"role": "user", "content": body.text("input", default="")}]
    items = body.objects("input", most=MAX_MESSAGES)
    found = [message for item in items for message in _messages(item)]
    if not found:
        body.refuse("input", "must have at least one message")
    return found


def _messages(item: Body) -> Iterator[Message]:
    """The message of an item; none for reasoning, which models do not read again."""
    kind = item.text("type", default="message")
    if kind == "message":
        role = item.text("role", default="user")
        role = "system" if role == "developer" else role
        yield {"role": role, "content": _text(item, "content")}
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        name = SHELL_NAME if kind == "local_shell_call" else item.text("name", default="")
        arguments: Any = item.any("arguments")
        if kind == "custom_tool_call":
            arguments = {"input": item.text("input", default="")}
        elif kind == "local_shell_call":
            arguments = {"command": item.object("action").values("command")}
        elif isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        call = {"id": item.text("call_id", default=""), "type": "function",
                "function": {"name": name, "arguments": arguments}}  # fmt: skip
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        id_ = item.text("call_id", "id", default="")
        yield {"role": "tool", "tool_call_id": id_, "content": _text(item, "output")}
    elif kind == "item_reference":
        item.refuse("type", "cannot be served; send the item, or `previous_response_id`")


def _text(item: Body, name: str) -> str:
    """A text, or a list of parts that are all text."""
    if not isinstance(item.any(name), list):
        return item.text(name, default="")
    texts = []
    for part in item.objects(name):
        if part.text("type", default="") not in _TEXTS:
            part.refuse("type", "must be text; this model reads nothing else")
        texts.append(part.text("text", "refusal", default=""))
    return "".join(texts)


def merged(messages: list[Message]) -> list[Message]:
    """Messages as all templates know them: one system message, at the beginning; then users and
    the assistant in turn. System messages that come later are the user's, because many templates
    refuse them there."""
    found: list[Message] = []
    for given in messages:
        message = dict(given)
        last = found[-1] if found else {"role": "system"}
        if message["role"] == "system" and last["role"] != "system":
            message["role"] = "user"
        if not found or last["role"] != message["role"] or message["role"] == "tool":
            found.append(message)
        elif message["role"] == "assistant":
            calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
            last["content"] += message["content"]
            last |= {"tool_calls": calls} if calls else {}
        else:
            last["content"] += f"\n\n{message['content']}"
    return found


def without_oldest(messages: list[Message]) -> list[Message]:
    """The messages without the oldest turn: all up to the second of the user's, but for those of
    the system's in the beginning; none if there is no second one."""
    first = next((at for at, each in enumerate(messages) if each["role"] != "system"), 0)
    turns = [at for at, each in enumerate(messages) if each["role"] == "user" and at > first]
    return [*messages[:first], *messages[turns[0] :]] if turns else []
