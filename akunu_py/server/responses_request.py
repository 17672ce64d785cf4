"""The requests of OpenAI's Responses, read into messages and tools as chat completions have them.

Tools that OpenAI's own service runs are left out. Codex's custom tools and its shell are offered as
functions.
"""

from collections.abc import Iterator
from typing import Any, Final

from akunu_py.server.body import Body
from akunu_py.server.conversation import Tools, select_tools
from akunu_py.server.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Message,
    call_of,
    made_call,
    read_offered_tools,
    read_text,
)

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
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text", "refusal", "summary_text")


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
    return kinds, select_tools(body, offered, model_has_tools=model_has_tools)


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
    """The message of an item; none for reasoning, which models do not read again, and for calls
    that OpenAI's service has done itself."""
    kind = item.text("type", default="message")
    if kind == "message":
        role = item.text("role", default="user")
        if role not in _ROLES:
            item.refuse("role", "must be user, assistant, system or developer")
        role = "system" if role == "developer" else role
        yield {"role": role, "content": read_text(item, "content", _TEXTS)}
    elif kind in ("function_call", "custom_tool_call", "local_shell_call"):
        id_ = item.text("call_id", default="")
        if kind == "function_call":
            call = call_of(item, id_)
        elif kind == "custom_tool_call":
            text = item.text("input", default="")
            call = made_call(item.text("name", default=""), {"input": text}, id_)
        else:
            words = item.object("action").values("command")
            call = made_call(SHELL_NAME, {"command": words}, id_)
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
    elif kind in ("function_call_output", "custom_tool_call_output", "local_shell_call_output"):
        id_ = item.text("call_id", "id", default="")
        yield {"role": "tool", "tool_call_id": id_, "content": read_text(item, "output", _TEXTS)}
    elif kind == "item_reference":
        item.refuse("type", "cannot be served; send the item, or `previous_response_id`")
    elif kind != "reasoning" and not kind.endswith("_call"):
        item.refuse("type", "is not served")


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
